"""Operators that a program may name, and what their arguments may be.

Names are those of torch's ``aten`` library with their overloads; an overload's meaning does not
change between versions of torch. Nothing here knows torch: rules of sizes and memory need the
tensors and are in `torch_program`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

MAX_INTEGER = 2**40
"""Largest integer of a program, given or computed: no size in bytes is near it."""

DTYPES = frozenset(("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"))
"""What a node may cast to."""

WORDS = frozenset(
    [
        "none",
        "tanh",
        "same",
        "valid",
        "constant",
        "reflect",
        "replicate",
        "circular",
        "trunc",
        "floor",
    ]
)
"""Texts that arguments may be, besides an equation of `einsum`."""

_TABLE = """
T T T? P I P p -> T | conv1d conv2d conv3d
T T T? P s P p -> T | conv2d.padding conv1d.padding
T T T? P I I p P -> T | conv_transpose1d conv_transpose2d.input
T T T? -> T | linear
T T -> T | matmul mm bmm dot mv prelu maximum minimum logical_and logical_or max.other min.other
T T -> T | expand_as view_as reshape_as type_as
T A -> T | mul.Tensor mul_.Tensor div.Tensor div_.Tensor floor_divide remainder.Tensor
T A -> T | pow.Tensor_Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
T A -> T | bitwise_and.Tensor bitwise_or.Tensor
T T T beta=n alpha=n -> T | addmm baddbmm
s L -> T | einsum
T -> T | relu relu_ relu6 relu6_ silu silu_ mish mish_ selu selu_ hardswish hardswish_ hardsigmoid
T -> T | hardsigmoid_ sigmoid sigmoid_ tanh tanh_ log_sigmoid bernoulli neg abs exp log log1p log2
T -> T | expm1 sqrt rsqrt reciprocal square sin cos tan atan sinh cosh erf sign floor ceil round
T -> T | logical_not bitwise_not isnan max min any all t numpy_T squeeze contiguous clone detach
T -> T | detach_ alias zero_ lift_fresh_copy
T approximate=s -> T | gelu
T n n n -> T | elu elu_
T n -> T | celu leaky_relu leaky_relu_ bernoulli.p mul.Scalar mul_.Scalar div.Scalar
T n -> T | remainder.Scalar pow.Tensor_Scalar clamp_min clamp_max eq.Scalar ne.Scalar lt.Scalar
T n -> T | le.Scalar gt.Scalar ge.Scalar norm.Scalar fill_.Scalar
T n n -> T | hardtanh hardtanh_ softplus threshold add.Scalar add_.Scalar sub.Scalar rsub.Scalar
T n n -> T | where.Scalar
T i -> T | glu squeeze.dim unsqueeze tril triu one_hot
T i d? -> T | softmax.int log_softmax.int
T I b -> T | logsumexp amax amin
T n b -> T | dropout dropout_ feature_dropout alpha_dropout
T dtype=d? -> T | randn_like sum mean prod zeros_like ones_like
I dtype=d? -> T | randn rand zeros ones
T T? T? T? T? b n n b -> T | batch_norm instance_norm
T p T? T? n b -> T | group_norm
T I T? T? n b -> T | layer_norm
T I T? n? -> T | rms_norm
T P P I P b -> T | max_pool1d max_pool2d
T P P I P b -> L | max_pool2d_with_indices
T P P I b b -> T | avg_pool1d
T P P I b b i? -> T | avg_pool2d
T I -> T | adaptive_avg_pool1d adaptive_avg_pool2d view reshape permute squeeze.dims flip repeat
T I -> T | tile broadcast_to reflection_pad1d reflection_pad2d replication_pad2d
T I -> L | adaptive_max_pool2d adaptive_max_pool1d
T L L b p n b b b -> L | lstm.input
T T L b p n b b b -> L | gru.input rnn_tanh.input rnn_relu.input
T L T T T? T? -> L | lstm_cell
T T T T T? T? -> T | gru_cell rnn_tanh_cell rnn_relu_cell
T T T T? n b scale=n? enable_gqa=b -> T | scaled_dot_product_attention
T T i b b -> T | embedding
T T T? i i n -> T | cross_entropy_loss
T T T? i i -> T | nll_loss_nd nll_loss
T T i -> T | mse_loss l1_loss soft_margin_loss
T T i n -> T | smooth_l1_loss huber_loss cosine_similarity
T T T? i -> T | binary_cross_entropy
T T T? T? i -> T | binary_cross_entropy_with_logits
T T i log_target=b -> T | kl_div
T T b b n i -> T | poisson_nll_loss
T T T n i -> T | cosine_embedding_loss margin_ranking_loss
T T n i -> T | hinge_embedding_loss
T T T n n n b i -> T | triplet_margin_loss
T T n n T? i -> T | multi_margin_loss
T A alpha=n -> T | add.Tensor add_.Tensor sub.Tensor sub_.Tensor rsub.Tensor
T A rounding_mode=s? -> T | div.Tensor_mode
n T -> T | pow.Scalar
T n? n? -> T | clamp clamp_
T T n -> T | lerp.Scalar where.ScalarOther masked_fill.Scalar masked_fill_.Scalar
T T T value=n -> T | addcmul addcdiv
T T T -> T | where.self masked_fill.Tensor
T n T -> T | where.ScalarSelf
T I? b dtype=d? -> T | sum.dim_IntList mean.dim
T I? correction=n? keepdim=b -> T | var.correction std.correction
T I? b b -> T | var.dim std.dim
T i b -> L | max.dim min.dim sort
T i? b -> T | argmax argmin
T i b dtype=d? -> T | prod.dim_int
T n? I b -> T | norm.ScalarOpt_dim
T n I? b dtype=d? -> T | linalg_vector_norm
T i dtype=d? -> T | cumsum
T i b -> T | any.dim all.dim
T i i b b -> L | topk
T T n n b -> T | pairwise_distance
T i i -> T | flatten.using_ints transpose.int movedim.int swapaxes select.int
T i I -> T | unflatten.int
T I implicit=b -> T | expand
T I I -> T | movedim.intlist roll
T i i? i? i -> T | slice.Tensor
T i i i -> T | narrow diagonal unfold
T N -> T | index.Tensor
T i T -> T | index_select
T i T sparse_grad=b -> T | gather
T i T n -> T | scatter.value
T i T T -> T | scatter.src scatter_add
T T i? -> T | take_along_dim
T T _ -> T | copy_
T N T b -> T | index_put
L i -> T | cat stack concat
L -> T | hstack vstack
T p i -> L | split.Tensor split.sizes chunk
T I i -> L | split_with_sizes
T i -> L | unbind.int
T i i -> L | tensor_split.sections
L -> L | meshgrid broadcast_tensors
T i i? output_size=i? -> T | repeat_interleave.self_int
T I s n? -> T | pad
T I n -> T | constant_pad_nd
I n dtype=d? -> T | full
T n dtype=d? -> T | full_like
n dtype=d? -> T | arange scalar_tensor
n n dtype=d? -> T | arange.start
n n n dtype=d? -> T | arange.start_step
T I dtype=d? -> T | new_zeros new_ones
T I n dtype=d? -> T | new_full
i dtype=d? -> T | eye
n n i dtype=d? -> T | linspace
T d _ b _ -> T | to.dtype
T I? F? -> T | upsample_nearest2d.vec
T I? b F? -> T | upsample_bilinear2d.vec
T p -> T | pixel_shuffle pixel_unshuffle channel_shuffle
T P P I P -> T | im2col
T i -> i | sym_size.int
"""
# Of plain integers, as sizes of a batch are reckoned with; no operators of torch.
_INTEGERS = """
i i -> i | int.add int.sub int.mul int.floordiv int.mod int.max int.min
i -> i | int.neg
n n -> n | float.add float.sub float.mul float.truediv float.pow
n -> n | float.of float.neg float.sqrt
L i -> T | list.get
"""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    Each of `kinds` is a letter, with ``?`` where nothing may stand: T tensor, A tensor or number,
    L tensors, N tensors or nothing, i integer, p integer over 0, n number, b truth value,
    I integers, P integers over 0, F numbers, d dtype, s text, ``_`` nothing.
    """

    name: str
    kinds: tuple[str, ...]
    named: tuple[str, ...]  # what the last of them are called where torch wants them by name
    result: str

    @property
    def in_place(self) -> bool:
        """Whether the first argument is what it writes to."""
        return self.name.partition(".")[0].endswith("_")

    @property
    def torch(self) -> tuple[str, str] | None:
        """Name and overload below ``torch.ops.aten``; None for an operator on numbers."""
        base, _, overload = self.name.partition(".")
        return None if base in ("int", "float", "list") else (base, overload or "default")


@cache
def operators() -> Mapping[str, Operator]:
    """Return every operator by name; ``.default`` is left out of a name."""
    return dict(_read(_TABLE + _INTEGERS))


def _read(table: str) -> list[tuple[str, Operator]]:
    found = []
    for line in filter(None, table.splitlines()):
        form, names = line.split(" | ")
        given, result = form.split(" -> ")
        words = [word.rpartition("=") for word in given.split()]
        kinds = tuple(kind for _, _, kind in words)
        named = tuple(name for name, _, _ in words if name)
        found += [(name, Operator(name, kinds, named, result)) for name in names.split()]
    return found
