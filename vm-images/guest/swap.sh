#!/bin/sh
# swap PERCENT: compressed swap in memory, as large as PERCENT of what the guest has now. It carries a burst over the time
# between a shortage and the memory that ends it, and is not to be lived from: as soon as what is in it fits into free
# memory with room to spare, it is emptied.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
device=/dev/zram0

figures() {
    while read -r name value _; do
        case $name in
            MemTotal:) total=$value ;;
            MemAvailable:) available=$value ;;
            SwapTotal:) swap=$value ;;
            SwapFree:) swap_free=$value ;;
        esac
    done < /proc/meminfo
}

figures
if [ "$swap" != 0 ] && ! grep -q "^$device " /proc/swaps; then
    # The VM has a swap disk, whose size is what was asked for.
    exec sleep 2147483647
fi
if [ ! -b $device ]; then
    for module in $(cat /usr/lib/bellows/modules/late); do
        insmod "/usr/lib/bellows/modules/$module" || exit 1
    done
fi
if [ "$swap" = 0 ]; then
    # A device left by an earlier run of this script has its size already.
    [ "$(cat /sys/block/zram0/disksize)" != 0 ] || echo $((total * $1 / 100))K > /sys/block/zram0/disksize
    mkswap $device > /dev/null && swapon $device || exit 1
fi

before=0
while sleep 10; do
    figures
    used=$((swap - swap_free))
    # Not while more goes in, and not into the last fifth of memory.
    if [ $used -gt 1024 ] && [ $used -le $before ] && [ $((available - used)) -gt $((total / 5)) ]; then
        swapoff $device && swapon $device
    fi
    before=$used
done
