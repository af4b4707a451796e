#!/bin/sh
# Installs vm-monitor and bellows-updater on a machine with apt or dnf, at the version of a channel.
set -eu

usage() {
    cat >&2 <<'END'
usage: join.sh --base-url URL --channel NAME --suite-url URL --key FILE

  --base-url URL   folder of channels, https: or file:
  --channel NAME   name of the channel, as stable
  --suite-url URL  folder of the packages and their index, https: or file:
  --key FILE       key that signs the suite
END
    exit 64
}

fail() {
    echo "join.sh: $2" >&2
    exit "$1"
}

# Values of a script that bellows-fleet serves; options replace them. key_text is the key in base64.
base_url='' channel='' suite_url='' key='' key_text=''
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
[ -n "$base_url" ] && [ -n "$channel" ] && [ -n "$suite_url" ] && [ -n "$key$key_text" ] || usage

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
[ -z "$key" ] || [ -f "$key" ] || fail 64 "--key $key is no file"
[ "$(id -u)" = 0 ] || fail 69 'root is needed to install packages: run it by sudo'

if command -v apt-get > /dev/null; then
    manager=apt
elif command -v dnf > /dev/null; then
    manager=dnf
else
    fail 69 'apt or dnf is needed to install packages'
fi

read_file() {
    case $manager in
        apt) /usr/lib/apt/apt-helper download-file "$1" "$2" > /dev/null ;;
        dnf) curl --silent --show-error --fail --max-time 60 --proto '=https,file' --output "$2" "$1" ;;
    esac
}

name_suite_to_apt() {
    install -D -m 0644 "$key" /usr/share/keyrings/bellows.pgp
    cat > /etc/apt/sources.list.d/bellows.sources <<END
Types: deb
URIs: $suite_url
Suites: ./
Signed-By: /usr/share/keyrings/bellows.pgp
END
}

name_suite_to_dnf() {
    install -D -m 0644 "$key" /etc/pki/rpm-gpg/bellows
    mkdir -p /etc/yum.repos.d
    # Of files dnf finds signatures by three slashes alone. That of the suite covers each of its packages.
    cat > /etc/yum.repos.d/bellows.repo <<END
[bellows]
name=Bellows
baseurl=$(echo "$suite_url" | sed 's|^file:/*|file:///|')
gpgkey=file:///etc/pki/rpm-gpg/bellows
repo_gpgcheck=1
gpgcheck=0
END
}

# The suite alone: other sources of the machine may be out of reach.
of_suite() {
    dnf --quiet --assumeyes --disablerepo='*' --enablerepo=bellows --setopt=bellows.repo_gpgcheck=1 \
        --setopt=bellows.skip_if_unavailable=0 --setopt=install_weak_deps=0 "$@"
}

read_suite() {
    case $manager in
        apt)
            apt-get --quiet=2 --error-on=any --option=Dir::Etc::sourceparts=- --option=APT::Get::List-Cleanup=0 \
                --option=Dir::Etc::sourcelist=/etc/apt/sources.list.d/bellows.sources update
            ;;
        dnf) of_suite --refresh makecache ;;
    esac
}

install_packages() {
    case $manager in
        apt)
            DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 --yes --no-install-recommends \
                --option=Dpkg::Options::=--force-confold install "vm-monitor=$version" bellows-updater
            ;;
        # Before a release rpm has a tilde.
        dnf) of_suite install "vm-monitor-$(echo "$version" | tr - '~')" bellows-updater ;;
    esac
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "$key" ]; then
    key=$folder/key
    printf '%s' "$key_text" | base64 -d > "$key" || fail 69 'the key of this script is not base64'
fi
read_file "${base_url%/}/v1/$channel/version" "$folder/version" ||
    fail 69 "failed to read ${base_url%/}/v1/$channel/version"
version=$(head -c 65 "$folder/version")
case "$version" in
    *[!A-Za-z0-9.-]*) fail 69 'the version of the channel has other letters than a version' ;;
    [0-9]*.[0-9]*.[0-9]*) ;;
    *) fail 69 'the version of the channel must be as 1.2.3' ;;
esac

name_suite_to_$manager
read_suite || fail 69 'failed to read the suite'
mkdir -p /etc/bellows
# Before the package, which then keeps it.
cat > /etc/bellows/updater.toml <<END
enabled = true
base_url = "$base_url"
channel = "$channel"
page = "127.0.0.1:9100"
END
install_packages || fail 69 "failed to install vm-monitor $version"
echo "vm-monitor $version is installed. Set it up in /etc/default/vm-monitor, then run:"
echo '    systemctl enable --now vm-monitor'
