#!/bin/sh
# Installs vm-monitor and bellows-updater on a machine with apt, at the version of a channel.
set -eu

usage() {
    cat >&2 <<'END'
usage: join.sh --base-url URL --channel NAME --suite-url URL --key FILE

  --base-url URL   folder of channels, https: or file:
  --channel NAME   name of the channel, as stable
  --suite-url URL  folder of the packages and their index, https: or file:
  --key FILE       key that signs the suite, for apt
END
    exit 64
}

fail() {
    echo "join.sh: $2" >&2
    exit "$1"
}

base_url='' channel='' suite_url='' key=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case "$1" in
        --base-url) base_url=$2 ;;
        --channel) channel=$2 ;;
        --suite-url) suite_url=$2 ;;
        --key) key=$2 ;;
        *) usage ;;
    esac
    shift 2
done
[ -n "$base_url" ] && [ -n "$channel" ] && [ -n "$suite_url" ] && [ -n "$key" ] || usage

# Each becomes a line of a file: no spaces, quotes or line ends.
is_url() {
    case "$1" in *[!A-Za-z0-9:/._~%@-]*) return 1 ;; https://* | file:/*) return 0 ;; esac
    return 1
}
is_url "$base_url" || fail 64 "--base-url must begin with https:// or file:/ and have no spaces"
is_url "$suite_url" || fail 64 "--suite-url must begin with https:// or file:/ and have no spaces"
case "$channel" in
    *[!a-z0-9-]* | -* | *-) fail 64 '--channel must be lower-case letters, digits and inner hyphens' ;;
esac
[ -f "$key" ] || fail 64 "--key $key is no file"
[ "$(id -u)" = 0 ] || fail 69 'root is needed to install packages: run it by sudo'

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
/usr/lib/apt/apt-helper download-file "${base_url%/}/v1/$channel/version" "$folder/version" > /dev/null ||
    fail 69 "failed to read ${base_url%/}/v1/$channel/version"
version=$(head -c 65 "$folder/version")
case "$version" in
    *[!A-Za-z0-9.-]*) fail 69 'the version of the channel has other letters than a version' ;;
    [0-9]*.[0-9]*.[0-9]*) ;;
    *) fail 69 'the version of the channel must be as 1.2.3' ;;
esac

install -D -m 0644 "$key" /usr/share/keyrings/bellows.pgp
cat > /etc/apt/sources.list.d/bellows.sources <<END
Types: deb
URIs: $suite_url
Suites: ./
Signed-By: /usr/share/keyrings/bellows.pgp
END
export DEBIAN_FRONTEND=noninteractive
# The suite alone: other sources of the machine may be out of reach.
apt-get --quiet=2 --error-on=any --option=Dir::Etc::sourceparts=- --option=APT::Get::List-Cleanup=0 \
    --option=Dir::Etc::sourcelist=/etc/apt/sources.list.d/bellows.sources update ||
    fail 69 'failed to read the suite'
mkdir -p /etc/bellows
# Before the package, which then keeps it.
cat > /etc/bellows/updater.toml <<END
enabled = true
base_url = "$base_url"
channel = "$channel"
page = "127.0.0.1:9100"
END
apt-get --quiet=2 --yes --no-install-recommends --option=Dpkg::Options::=--force-confold \
    install "vm-monitor=$version" bellows-updater ||
    fail 69 "failed to install vm-monitor $version"
echo "vm-monitor $version is installed. Set it up in /etc/default/vm-monitor, then run:"
echo '    systemctl enable --now vm-monitor'
