# Sourced by login shells: a notice of the host, such as that this guest is about to move.
[ ! -r /run/bellows/notice ] || cat /run/bellows/notice
