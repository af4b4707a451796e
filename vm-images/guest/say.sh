# Sourced: say WORDS writes a line to the console, which the host keeps.
say() {
    read -r up _ < /proc/uptime
    echo "[guest $up] $*" > /dev/console
}
