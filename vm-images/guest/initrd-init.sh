#!/bin/sh
# The only program of the initial RAM disk: loads what the root disk needs, mounts it, becomes the guest's init.
B=/bin/busybox
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
root=/dev/vda
init=
for word in $($B cat /proc/cmdline); do
    case $word in
        root=/dev/*) root=${word#root=} ;;
        init=/*) init=${word#init=} ;;
    esac
done
for module in $($B cat /modules/order); do
    $B insmod "/modules/$module"
done
# The disk appears within a few milliseconds of its driver; ten seconds is for a host that swaps.
tries=0
while [ ! -b "$root" ] && [ $tries -lt 1000 ]; do
    $B usleep 10000
    tries=$((tries + 1))
done
if ! $B mount -t ext4 -o rw,noatime "$root" /new; then
    echo "[guest initrd] cannot mount $root: powering off" > /dev/console
    $B poweroff -f
fi
# A disk made for NeonVM brings its own.
if [ -z "$init" ]; then
    init=/sbin/init
    [ ! -e /new/neonvm/bin/init ] && [ ! -L /new/neonvm/bin/init ] || init=/neonvm/bin/init
fi
$B umount /proc
$B mount --move /dev /new/dev
exec $B switch_root /new "$init"
