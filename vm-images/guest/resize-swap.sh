#!/bin/sh
# resize-swap [--once] BYTES: makes the VM's swap so large; 0 switches it off. With --once it is the last time.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
resize=/neonvm/runtime/resize-swap-internal.sh
once=
[ "$1" != --once ] || { once=1; shift; }
case $# in
    1) ;;
    *) echo "usage: resize-swap [--once] BYTES" >&2; exit 64 ;;
esac
case $1 in
    '' | *[!0-9]*) echo "resize-swap: $1 is not a number of bytes" >&2; exit 64 ;;
esac
if [ ! -e $resize ]; then
    echo "resize-swap: this VM has no swap disk: set spec.guest.settings.swap" >&2
    exit 69
fi
sh $resize "$1" || exit 1
[ -z "$once" ] || rm -f "$0"
