//! RPM packages, made of what Debian's have: their scripts run with the arguments that dpkg gives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::recipe::{DEBIAN, EPOCH, Recipe, put};
use crate::shell;

/// Debian's name of a script, rpm's, and a line that turns rpm's count of the versions that stay
/// into a word of dpkg's.
const SCRIPTS: [(&str, &str, &str); 3] = [
    ("postinst", "post", "set -- configure"),
    ("prerm", "preun", r#"[ "$1" != 0 ] || set -- remove"#),
    ("postrm", "postun", r#"[ "$1" != 0 ] || set -- purge"#),
];
/// List of settings that an upgrade keeps.
const SETTINGS: &str = "conffiles";
/// Nothing of the machine that builds is in the package, and files are packaged as they are.
const MACROS: [&str; 9] = [
    "_buildhost bellows.invalid",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "_binary_payload w6.xzdio",
    "_build_id_links none",
    "__os_install_post %{nil}",
    "debug_package %{nil}",
    "source_date_epoch_from_changelog 0",
    "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
];

impl Recipe<'_> {
    /// Writes the RPM package into `out`; returns its path.
    pub(super) fn rpm(&self, out: &Path) -> Result<PathBuf> {
        let work = tempfile::tempdir()?;
        let tree = work.path().join("tree");
        let spec = work.path().join("package.spec");
        let files = self.all_files()?;
        fs::create_dir_all(&tree)?;
        for (name, content, mode) in &files {
            if !name.starts_with(DEBIAN) {
                put(&tree, name, content, *mode)?;
            }
        }
        self.link(&tree)?;
        fs::write(&spec, self.spec(&tree, &files)?)?;
        let mut command = Command::new("rpmbuild");
        command.env("SOURCE_DATE_EPOCH", EPOCH);
        command.args(["-bb", "--quiet", "--target", "x86_64-linux"]);
        let folder = |name: &str, path: &Path| format!("{name} {}", path.display());
        let macros = [
            folder("_topdir", work.path()),
            folder("_dbpath", &work.path().join("db")),
            folder("_rpmdir", out),
        ];
        for text in MACROS.map(str::to_owned).into_iter().chain(macros) {
            command.args(["--define", &text]);
        }
        shell::output(command.arg(&spec)).context("rpmbuild (package rpm) makes the package")?;
        let version = self.rpm_version();
        Ok(out.join(format!("{}-{version}-1.x86_64.rpm", self.name)))
    }

    /// In rpm a hyphen ends a version, and what follows a tilde comes before the release.
    fn rpm_version(&self) -> String {
        self.version.replace('-', "~")
    }

    /// What rpmbuild reads.
    fn spec(&self, tree: &Path, files: &[(String, Vec<u8>, u32)]) -> Result<String> {
        let (summary, text) = self.description.split_once('\n').unwrap_or_default();
        let own = |name: &str| -> Result<&str> {
            let place = format!("{DEBIAN}{name}");
            let found = files.iter().find(|(path, ..)| *path == place);
            let content = found.map_or(&[][..], |(_, content, _)| content);
            Ok(std::str::from_utf8(content)?)
        };
        let mut spec = format!(
            "Name: {}\nVersion: {}\nRelease: 1\nSummary: {summary}\nLicense: {}\nAutoReqProv: no\n{}\n\
             %description\n{}\n%install\ncp -a {}/. %{{buildroot}}/\n",
            self.name,
            self.rpm_version(),
            env!("CARGO_PKG_LICENSE"),
            self.rpm,
            text.replace("\n ", "\n").trim_start(),
            tree.display(),
        );
        for (debian, rpm, line) in SCRIPTS {
            let script = own(debian)?;
            if !script.is_empty() {
                spec += &format!("%{rpm}\n{line}\n{}", script.replace('%', "%%"));
            }
        }
        spec += "%files\n%defattr(-,root,root)\n";
        let settings = own(SETTINGS)?;
        let files = files.iter().map(|(path, ..)| path.as_str());
        let links = self.links.iter().map(|(path, _)| *path);
        for path in files.filter(|path| !path.starts_with(DEBIAN)).chain(links) {
            let is_setting = settings.lines().any(|line| line == format!("/{path}"));
            spec += if is_setting {
                "%config(noreplace) "
            } else {
                ""
            };
            spec += &format!("/{path}\n");
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use test_records::{Missing, skip};

    use super::*;
    use crate::dist::updater;

    /// Mode, owner, group and flags of each file. 2 is a document, 17 a setting that an
    /// upgrade keeps.
    const FILES: &str = "\
-rw-r--r-- root root 17 /etc/bellows/updater.toml
-rwxr-xr-x root root 0 /usr/bin/bellows-updater
-rw-r--r-- root root 0 /usr/lib/systemd/system/bellows-schedule.path
-rw-r--r-- root root 0 /usr/lib/systemd/system/bellows-schedule.service
-rw-r--r-- root root 0 /usr/lib/systemd/system/bellows-upgrade-check.service
-rw-r--r-- root root 0 /usr/lib/systemd/system/bellows-upgrade-check.timer
-rw-r--r-- root root 0 /usr/lib/systemd/system/bellows-upgrade.service
-rw-r--r-- root root 0 /usr/lib/systemd/system/bellows-upgrade.timer
-rw-r--r-- root root 0 /usr/lib/systemd/system/vm-monitor.service.d/50-updater.conf
-rw-r--r-- root root 2 /usr/share/doc/bellows-updater/copyright
-rw-r--r-- root root 2 /usr/share/doc/bellows-updater/join.sh
-rw-r--r-- root root 2 /usr/share/doc/bellows-updater/updater.md
";

    fn queried(package: &Path, words: &[&str]) -> String {
        let mut command = Command::new("rpm");
        command.args(["--query", "--package"]).args(words);
        shell::output(command.arg(package)).expect("it reads")
    }

    /// Requirements: R27, R42
    #[test]
    fn rpm_package_is_the_same_each_time_and_has_these_modes() {
        if !shell::on_path("rpmbuild") {
            let test = "rpm_package_is_the_same_each_time_and_has_these_modes";
            return skip(test, Missing::Tool, "rpmbuild");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        fs::write(&program, vec![7; 5000]).expect("written");
        let build = |name: &str| {
            let recipe = updater::recipe("0.2.0-rc.1", &program, &shell::root());
            let package = recipe.expect("a recipe").rpm(&folder.path().join(name));
            package.expect("a package")
        };
        let (first, second) = (build("1"), build("2"));
        assert_eq!(
            fs::read(&first).expect("there"),
            fs::read(&second).expect("there")
        );
        let format = "--queryformat=[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEFLAGS} %{FILENAMES}\n]";
        assert_eq!(queried(&first, &[format]), FILES);
        let name = queried(
            &first,
            &["--queryformat=%{NEVRA} %{BUILDHOST} %{BUILDTIME}"],
        );
        let expected = "bellows-updater-0.2.0~rc.1-1.x86_64 bellows.invalid";
        assert_eq!(name, format!("{expected} {EPOCH}"));
        let needs = queried(&first, &["--requires"]);
        for need in ["vm-monitor", "systemd", "dnf"] {
            assert!(needs.lines().any(|line| line == need), "{needs}");
        }
    }
}
