"""Why a device was, or was not, selected in a round."""
