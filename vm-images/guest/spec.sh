#!/bin/sh
# What the VM's spec gives its guest beside CPUs and memory: the runner says it on a disk with the label vmruntime, as files
# that NeonVM's guests take, too. A machine without such a disk gives nothing.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
runtime=/neonvm/runtime
disk=
for found in /dev/vd?; do
    # Where a file system of this kind has its label; busybox knows no other way to ask for it.
    label=$(dd if="$found" bs=1 skip=32808 count=32 2> /dev/null | tr -d ' \0')
    [ "$label" != vmruntime ] || disk=$found
done
[ -n "$disk" ] || exit 0
mkdir -p $runtime
if ! mount -t iso9660 -o ro,mode=0644 "$disk" $runtime; then
    say "cannot mount $disk: the VM's disks, files and settings are not here"
    exit 1
fi
sh $runtime/mounts.sh > /dev/console 2>&1 || say "not every disk of the VM is mounted"
sysctl -q -p $runtime/sysctl.conf > /dev/console 2>&1 || say "not every kernel setting of the VM is made"
if [ ! -e /etc/bellows/container ] && [ -e $runtime/command.sh -o -e $runtime/args.sh -o -e $runtime/env.sh ]; then
    say "command, args and env of the VM are for images made of containers: this image has services of its own"
fi
