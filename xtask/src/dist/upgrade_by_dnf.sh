#!/bin/bash
# Runs in a guest under systemd: what the updater of dnf does with the monitor, one line each, then the end.
say() { echo "LOOK $*"; }

channel=/srv/releases/v1/stable
show() { systemctl show vm-monitor --value --property "$1"; }
version() { rpm --query --queryformat '%{VERSION}' "${1:-vm-monitor}"; }
equal() { [ "$1" = "$2" ] && echo yes; }
settings() { cat /etc/default/vm-monitor /etc/bellows/updater.toml /etc/yum.repos.d/bellows.repo | md5sum; }

join() {
    sh /join.sh --base-url file:/srv/releases --channel stable --suite-url file:/srv/suite --key "$1" > /run/joined 2>&1
}

upgrade() {
    # Attempts are half an hour apart.
    rm -f /var/lib/bellows-updater/state.json
    systemctl start bellows-upgrade.service
    status=$(systemctl show bellows-upgrade.service --value --property ExecMainStatus)
    say "$1: upgrade $status version $(version) unit $(show UnitFileState) $(show ActiveState)"
    bellows-updater status
}

export GNUPGHOME=/run/other
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key other@bellows.invalid ed25519 sign never
gpg --output /run/other.pgp --export other@bellows.invalid
unset GNUPGHOME
join /run/other.pgp
say "join with a suite of another key $?: $(rpm --query --quiet vm-monitor || echo not) installed"
cat /run/joined
join /srv/suite/suite.pgp
say "join $?: monitor $(version) updater $(version bellows-updater)"
cat /run/joined
systemctl enable --now vm-monitor
kept=$(settings)

echo 0.1.1 > "$channel/version"
upgrade "new version"
before=$(show MainPID)
upgrade "same version"
say "process is the same: $(equal "$before" "$(show MainPID)")"
rm /usr/bin/vm-monitor
kill -9 "$(show MainPID)"
upgrade deleted
echo 0.1.0 > "$channel/version"
upgrade "lower version"
say "settings kept: $(equal "$kept" "$(settings)")," \
    "timers $(systemctl is-active bellows-upgrade.timer bellows-upgrade-check.timer bellows-schedule.path | xargs)"

# This version's program ends at once.
echo 0.1.2 > "$channel/version"
upgrade "bad version"
say "last: $(bellows-updater status -o json | grep -o '"result":"[a-z_]*"')"

rpm --erase bellows-updater
say "removed: $(systemctl is-active bellows-upgrade.timer bellows-schedule.path | tr '\n' ' ')monitor $(show ActiveState)"
systemctl poweroff --force
