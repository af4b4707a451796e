//! The script `join.sh` in the root of a Debian.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use test_records::{Missing, skip};

use super::recipe::put;
use super::{monitor, suite, updater};
use crate::cluster::rootfs::SYSTEMD;
use crate::cluster::store;
use crate::shell;

const SETTINGS: &str = "enabled = true\nbase_url = \"file:/srv/releases\"\nchannel = \"stable\"\n\
                        page = \"127.0.0.1:9100\"\n";
const SOURCE: &str =
    "Types: deb\nURIs: file:/srv/suite\nSuites: ./\nSigned-By: /usr/share/keyrings/bellows.pgp\n";

/// Runs the script in a root, with these values for its options.
fn join(root: &Path, values: [&str; 4]) -> Output {
    let names = ["--base-url", "--channel", "--suite-url", "--key"];
    let pairs = names.iter().zip(values);
    let options = pairs.flat_map(|(name, value)| [*name, value]);
    let mut command = Command::new("chroot");
    command.arg(root).args(["sh", "/join.sh"]).args(options);
    command.output().expect("it runs")
}

/// Writes the script, a signed suite of two versions and a channel into a root.
fn furnish(root: &Path, folder: &Path) {
    let script = fs::read(shell::root().join("fleet/updater/dist/join.sh")).expect("a script");
    put(root, "join.sh", &script, 0o755).expect("written");
    let packages = root.join("srv/suite");
    let program = folder.join("program");
    fs::write(&program, "#!/bin/sh\n").expect("written");
    let checkout = shell::root();
    let monitors = ["0.1.0", "0.1.1"].map(|version| monitor::recipe(version, &program, &checkout));
    let updater = updater::recipe(env!("CARGO_PKG_VERSION"), &program, &checkout);
    let recipes = monitors.into_iter().chain([updater]);
    let made: Vec<_> = recipes
        .map(|recipe| recipe.expect("a recipe").deb(&packages).expect("a package"))
        .collect();
    suite::sign(&packages, &made);
    put(root, "srv/releases/v1/stable/version", b"0.1.0\n", 0o644).expect("written");
}

/// Requirement: R34
#[test]
fn join_script_installs_the_channels_version_from_its_signed_suite() {
    const TEST: &str = "join_script_installs_the_channels_version_from_its_signed_suite";
    if !shell::is_root() || !shell::on_path("gpg") {
        return skip(
            TEST,
            Missing::Root,
            "packages are installed into a folder; gpg",
        );
    }
    let image = store::named(SYSTEMD).expect("a store");
    let image = image.map(|folder| folder.join("rootfs"));
    let Some(image) = image.filter(|root| root.join("usr/bin/apt-get").is_file()) else {
        return skip(TEST, Missing::Guest, "image with systemd and apt");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let mut copy = Command::new("cp");
    shell::output(copy.arg("-a").arg(&image).arg(&root)).expect("copied");
    furnish(&root, folder.path());
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let sound = [
        "file:/srv/releases",
        "stable",
        "file:/srv/suite",
        "/srv/suite/suite.pgp",
    ];
    // Each is refused before anything is written.
    for (index, bad, status) in [
        (0, "http://a.example/", 64),
        (0, "file:/srv\"\nenabled", 64),
        (1, "../x", 64),
        (2, "file:/srv/suite\nSuites: x", 64),
        (3, "/none", 64),
        (1, "edge", 69),
    ] {
        let mut values = sound;
        values[index] = bad;
        let ended = join(&root, values);
        assert_eq!(ended.status.code(), Some(status), "{bad}: {ended:?}");
        assert_eq!(read("etc/apt/sources.list.d/bellows.sources"), "", "{bad}");
    }
    for bad in ["0.1.0;id\n", "<html>\n", "latest\n", ""] {
        put(
            &root,
            "srv/releases/v1/stable/version",
            bad.as_bytes(),
            0o644,
        )
        .expect("written");
        assert_eq!(join(&root, sound).status.code(), Some(69), "{bad}");
        assert_eq!(read("etc/apt/sources.list.d/bellows.sources"), "", "{bad}");
    }
    put(&root, "srv/releases/v1/stable/version", b"0.1.0\n", 0o644).expect("written");
    let ended = join(&root, sound);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(read("etc/bellows/updater.toml"), SETTINGS);
    assert_eq!(read("etc/apt/sources.list.d/bellows.sources"), SOURCE);
    let mut query = Command::new("chroot");
    let format = "--showformat=${Package} ${Version} ${db:Status-Status}\n";
    query.arg(&root).args(["dpkg-query", "--show", format]);
    let installed = shell::output(query.args(["vm-monitor", "bellows-updater"])).expect("it runs");
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(
        installed,
        format!("bellows-updater {own} installed\nvm-monitor 0.1.0 installed\n")
    );
    // The suite of another key is refused.
    let packages = root.join("srv/suite");
    let key = fs::read(packages.join(suite::KEY)).expect("a key");
    for name in ["InRelease", suite::KEY] {
        fs::remove_file(packages.join(name)).expect("removed");
    }
    suite::sign(&packages, &[]);
    fs::write(packages.join(suite::KEY), key).expect("written");
    assert_eq!(join(&root, sound).status.code(), Some(69));
}
