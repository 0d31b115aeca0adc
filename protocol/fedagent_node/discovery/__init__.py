"""Announcing and finding roles by zeroconf. An advert is a hint: anybody can send one."""
