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

# The hierarchies that share out CPU time: one.
share_hierarchy() {
    found=$(hierarchies | while read -r path options; do
        case ,$options, in *,cpu,*) echo "$path" ;; esac
    done)
    echo "${found:-/sys/fs/cgroup}"
}

# Makes a group below another in these hierarchies, and puts this shell into it.
join_group() { # PARENT NAME HIERARCHY...
    above=$1 below=$2
    shift 2
    for top in "$@"; do
        mkdir -p "$top/$above/$below"
        # A new cpuset is empty, and nothing can join it.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$top/$above/$below/$file" ] || cat "$top/$above/$file" > "$top/$above/$below/$file"
        done
        echo $$ > "$top/$above/$below/cgroup.procs"
    done
}

# Gives a group the share of CPU time of a pod that requests so much; the numbers are those of kubelet.
weigh_group() { # GROUP MILLICPU
    weighed=$(share_hierarchy)/$1 shares=$(($2 * 1024 / 1000))
    if [ -e "$weighed/cpu.shares" ]; then
        echo "$shares" > "$weighed/cpu.shares"
    elif [ -e "$weighed/cpu.weight" ]; then
        echo $((1 + (shares - 2) * 9999 / 262142)) > "$weighed/cpu.weight"
    fi
}
