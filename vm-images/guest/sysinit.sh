#!/bin/sh
# Runs once, first, and blocks everything else: only what services need to start.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777,size=80% tmpfs /dev/shm
# What a container image has there belongs to its programs.
if [ ! -e /etc/bellows/container ]; then
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    mount -t tmpfs -o mode=755 tmpfs /run
    # Secrets that the runner pushes.
    mkdir -m 700 /run/bellows
fi
# Processes of the parts. Those of an earlier boot are void.
rm -rf /run/bellows/parts
mkdir -p -m 700 /run/bellows/parts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
. /usr/lib/bellows/say
say INIT

# Controllers for every group below the root. Groups are made here so that a service only has to enter its own.
echo "+cpu +memory +io +pids" > /sys/fs/cgroup/cgroup.subtree_control
for group in $(cat /etc/bellows/cgroups); do
    mkdir -p "/sys/fs/cgroup/$group"
done

# Words of the kernel command line that are meant for us.
hostname=$(cat /etc/hostname)
memory=
overlay=
net=10.0.2.15/24,10.0.2.2
dns=
search=
for word in $(cat /proc/cmdline); do
    case $word in
        bellows.hostname=*) hostname=${word#*=} ;;
        memhp_default_state=*) memory=${word#*=} ;;
        ip=*:eth[1-9]:off) overlay=${word#*=} ;;
        bellows.net=*) net=${word#*=} ;;
        bellows.dns=*) dns=${word#*=} ;;
        bellows.search=*) search=${word#*=} ;;
    esac
done
hostname "$hostname"
# Who asks for the address of this host gets one.
grep -qw -- "$hostname" /etc/hosts || echo "127.0.0.1 $hostname" >> /etc/hosts

# Memory plugged later must land in the movable zone, or it can never be unplugged again. Before virtio_mem is loaded.
[ -n "$memory" ] || echo online_movable > /sys/devices/system/memory/auto_online_blocks
for module in $(cat /usr/lib/bellows/modules/order); do
    insmod "/usr/lib/bellows/modules/$module" 2> /dev/null || say "module $module does not load"
done

# QEMU's user network always has the same address for the guest, any other one tells it; DHCP would only cost time.
ip link set lo up
if ip link set eth0 up 2> /dev/null; then
    ip address add "${net%,*}" dev eth0
    ip route add default via "${net#*,}"
else
    say "no network device"
fi
# Who knows names, unless it is the user network's own server, which the image names.
if [ -n "$dns" ]; then
    {
        for server in $(echo "$dns" | tr , ' '); do
            echo "nameserver $server"
        done
        [ -z "$search" ] || echo "search $(echo "$search" | tr , ' ')"
    } > /etc/resolv.conf
fi
# The overlay network, in the words that a kernel with its drivers built in takes by itself.
if [ -n "$overlay" ]; then
    IFS=: read -r address _ _ mask _ device _ << EOF
$overlay
EOF
    { ip link set "$device" up && ip address add "$address/$mask" dev "$device"; } || say "no overlay network on $device"
fi

[ ! -s /etc/sysctl.conf ] || sysctl -q -p /etc/sysctl.conf
/usr/lib/bellows/spec
# Nothing runs yet, so a lock file of a server is one that a crash left.
rm -f /srv/pg/data/postmaster.pid
syslogd -C512
say STARTED
