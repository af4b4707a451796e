#!/bin/sh
# Finds the port by which the host reads this guest's log, and puts it where NeonVM's guests have it, for everybody to write to. One
# program at a time can have it open: in an image made of a container that is for what the image runs, else it gets the services' log.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
ports=/sys/class/virtio-ports
driver=/sys/bus/virtio/drivers/virtio_console
devices=/dev
port=
find_port() {
    for found in $ports/*; do
        read -r name 2> /dev/null < "$found/name" || continue
        [ "$name" != tech.neon.log.0 ] || port=${found##*/}
    done
}
# The host tells of its ports a moment after the driver has its device.
find_port
tries=0
while [ -z "$port" ] && ls $driver 2> /dev/null | grep -q '^virtio[0-9]' && [ $tries -lt 50 ]; do
    usleep 100000
    tries=$((tries + 1))
    find_port
done
if [ -n "$port" ]; then
    chmod 666 "$devices/$port"
    mkdir -p $devices/virtio-ports
    ln -sf "../$port" $devices/virtio-ports/tech.neon.log.0
fi
[ ! -e /etc/bellows/container ] || exit 0
# Without one there is nothing to try again for.
[ -n "$port" ] || exec sleep 2147483647
echo 0 > /sys/fs/cgroup/system/cgroup.procs
exec logread -F > "$devices/$port"
