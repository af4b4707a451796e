# Control groups, for machines that are sets of namespaces; read by their scripts.

# Hierarchies of version 1 in use, as "directory options".
hierarchies() { awk '$3 == "cgroup" && $2 ~ "^/sys/fs/cgroup/" {print $2 " " $4}' /proc/mounts | sort -u; }

# Those of the machine, as its control group shows them.
mount_control_groups() { # ROOT
    v1=$(hierarchies)
    if [ -z "$v1" ]; then
        mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs "$1/sys/fs/cgroup"
    echo "$v1" | while read -r path options; do
        mkdir -p "$1$path"
        case $options in
            *name=*) options=none,name=${options##*name=} ;;
            *) options=${options##*relatime,} ;;
        esac
        mount -t cgroup -o "$options" cgroup "$1$path"
    done
}
