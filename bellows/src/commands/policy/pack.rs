//! `bellows policy pack` and `unpack`: one file of a policy, pinned by its SHA-256.

use std::path::{Path, PathBuf};

use clap::Args;
use policy_contract::{Digest, Pack, PackError, Scope, Spec};
use protocol::policy::Series;
use serde_json::json;

use super::object::{parameter, read_source};
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::out;

/// What stands between the path of a packed policy and its digest.
const PIN: &str = "@sha256:";

/// Make one file of a policy, for another machine or cluster.
///
/// The file has the source, parameters, series and the fixtures beside the source. It has no
/// limits: those of the place where it is applied hold. Prints the file's SHA-256, without which
/// the file is not applied.
#[derive(Debug, Clone, Args)]
pub(crate) struct PackArgs {
    /// Source of the policy, Lua
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File to write [default: NAME.policy in the working directory]
    #[arg(long = "to", value_name = "FILE")]
    to: Option<PathBuf>,
    /// Name of the policy [default: that of the file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A number of the policy; may be given again
    #[arg(long = "params", value_name = "NAME=NUMBER", value_parser = parameter)]
    params: Vec<(String, f64)>,
    /// A series beyond load1, load5, used and cached; may be given again
    #[arg(long = "series", value_name = "NAME", value_parser = series)]
    series: Vec<Series>,
    /// How to print what was written
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Write source and fixtures of a packed policy as files.
#[derive(Debug, Clone, Args)]
pub(crate) struct UnpackArgs {
    /// File that `bellows policy pack` wrote, with the digest that it printed
    #[arg(value_name = "FILE@sha256:DIGEST")]
    file: PathBuf,
    /// Directory to write into. It must exist, and files of the policy's name must not
    #[arg(value_name = "DIR", default_value = ".")]
    into: PathBuf,
}

pub(super) fn series(text: &str) -> Result<Series, String> {
    Series::of(text).ok_or_else(|| "there is no such series".to_owned())
}

/// A path with a digest. `None` for a path alone.
///
/// # Errors
///
/// 64 if what follows `@sha256:` is no digest.
fn pinned(file: &Path) -> Outcome<Option<(PathBuf, Digest)>> {
    let Some((path, digest)) = file.to_str().and_then(|text| text.rsplit_once(PIN)) else {
        return Ok(None);
    };
    let digest = Digest::of(digest).ok_or_else(|| {
        Fail::usage(format!("{digest:?} is no SHA-256"))
            .rule("a digest is 64 lower-case hex digits")
            .fix("take the line that bellows policy pack printed")
    })?;
    Ok(Some((path.into(), digest)))
}

fn read_bytes(file: &Path) -> Outcome<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| Fail::usage(format!("{} cannot be read: {error}", file.display())))
}

fn open(file: &Path, digest: Digest) -> Outcome<Pack> {
    Pack::read_pinned(&read_bytes(file)?, digest).map_err(|error| {
        let fail = Fail::not_so(format!("{}: {error}", file.display()));
        match error {
            PackError::Altered { .. } => fail
                .rule("a packed policy is taken only with the SHA-256 that bellows policy pack printed")
                .fix("get the file again from who packed it; if it was packed again, ask for its digest"),
            PackError::TooLarge | PackError::Malformed(_) => {
                fail.fix("pack it again: bellows policy pack FILE.lua")
            }
        }
    })
}

/// The packed policy that a path with a digest names. `None` for the source of a policy.
///
/// # Errors
///
/// 1 if the file has another digest, 64 for a packed policy without one.
pub(super) fn find(file: &Path) -> Outcome<Option<Pack>> {
    if let Some((path, digest)) = pinned(file)? {
        return open(&path, digest).map(Some);
    }
    let bytes = read_bytes(file)?;
    if Pack::read(&bytes).is_err() {
        return Ok(None);
    }
    let file = file.display();
    Err(
        Fail::usage(format!("{file} is a packed policy, and no digest is given"))
            .rule("a packed policy is taken only with the SHA-256 that bellows policy pack printed")
            .fix(format!("bellows policy apply {file}{PIN}DIGEST")),
    )
}

fn packed(args: &PackArgs) -> Outcome<Pack> {
    let source = read_source(&args.file)?;
    let stem = args.file.file_stem().and_then(|stem| stem.to_str());
    let name = args.name.as_deref().or(stem).unwrap_or_default();
    let beside = args.file.with_extension("toml");
    let fixtures = match std::fs::read_to_string(&beside) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            let what = format!("{} cannot be read: {error}", beside.display());
            return Err(Fail::usage(what));
        }
    };
    let spec = Spec {
        scope: Scope::Vm,
        params: args.params.iter().cloned().collect(),
        series: args.series.clone(),
        ..Spec::of_source(source)
    };
    Pack::new(name, spec, fixtures)
        .map_err(|error| Fail::usage(format!("{}: {error}", args.file.display())))
}

pub(super) fn pack(args: &PackArgs) -> Outcome {
    let pack = packed(args)?;
    let bytes = pack.to_bytes();
    let file = args.to.clone();
    let file = file.unwrap_or_else(|| PathBuf::from(format!("{}.policy", pack.name)));
    let digest = Digest::of_bytes(&bytes);
    std::fs::write(&file, &bytes)
        .map_err(|error| Fail::usage(format!("{} cannot be written: {error}", file.display())))?;
    let version = pack.spec.digest();
    let shown = file.display().to_string();
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(
            args.output,
            &json!({
                "file": shown,
                "sha256": digest,
                "policy": pack.name,
                "version": version,
                "hasFixtures": pack.fixtures.is_some(),
            }),
        );
    }
    let fixtures = match pack.fixtures {
        Some(_) => "with its fixtures",
        None => "without fixtures",
    };
    out(&format!(
        "policy {}, version {}, {fixtures}: {shown}",
        pack.name,
        version.short()
    ));
    out(&format!(
        "Apply it: bellows policy apply {shown}{PIN}{digest}"
    ));
    Ok(())
}

pub(super) fn unpack(args: &UnpackArgs) -> Outcome {
    let Some((file, digest)) = pinned(&args.file)? else {
        let file = args.file.display();
        return Err(Fail::usage(format!("{file}: no digest is given"))
            .rule("a packed policy is taken only with the SHA-256 that bellows policy pack printed")
            .fix(format!("bellows policy unpack {file}{PIN}DIGEST")));
    };
    let pack = open(&file, digest)?;
    let source = [
        ("lua", Some(&pack.spec.source)),
        ("toml", pack.fixtures.as_ref()),
    ];
    for (kind, text) in source {
        let Some(text) = text else { continue };
        let path = args.into.join(format!("{}.{kind}", pack.name));
        write_new(&path, text)?;
        out(&path.display().to_string());
    }
    Ok(())
}

fn write_new(path: &Path, text: &str) -> Outcome {
    use std::io::Write as _;
    let file = std::fs::File::create_new(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| {
            Fail::usage(format!("{} cannot be written: {error}", path.display()))
                .rule("the directory must exist, and the file must not")
        })
}

#[cfg(test)]
mod tests {
    use daemon_kit::exit::Exit;

    use super::*;

    const SOURCE: &str = "return function(i) return std.hold('x') end\n";
    const FIXTURES: &str = "# none\n";

    /// A packed policy with fixtures, and its path with the digest.
    fn packed_in(folder: &Path) -> String {
        let pack = Pack::new("db", Spec::of_source(SOURCE), Some(FIXTURES.into()));
        let bytes = pack.expect("a policy").to_bytes();
        let file = folder.join("db.policy");
        std::fs::write(&file, &bytes).expect("written");
        format!("{}{PIN}{}", file.display(), Digest::of_bytes(&bytes))
    }

    fn unpacked(file: &str, into: &Path) -> Outcome {
        unpack(&UnpackArgs {
            file: file.into(),
            into: into.into(),
        })
    }

    /// Requirement: V40
    #[test]
    fn v40_unpacked_files_are_those_that_were_packed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = packed_in(folder.path());
        assert_eq!(unpacked(&file, folder.path()), Ok(()));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
        assert_eq!((&*read("db.lua"), &*read("db.toml")), (SOURCE, FIXTURES));
        let again = unpacked(&file, folder.path()).expect_err("a file is there");
        assert_eq!(again.exit(), Exit::Config);
        assert!(again.to_string().contains("db.lua"), "{again}");
    }

    /// Requirement: V40
    #[test]
    fn v40_altered_or_unpinned_file_is_not_unpacked() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = packed_in(folder.path());
        let (path, _) = file.split_once(PIN).expect("a digest");
        let unpinned = unpacked(path, folder.path()).expect_err("no digest");
        assert_eq!(unpinned.exit(), Exit::Config);
        let odd = unpacked(&format!("{path}{PIN}12"), folder.path()).expect_err("no digest");
        assert_eq!(odd.exit(), Exit::Config);
        let mut bytes = std::fs::read(path).expect("a file");
        *bytes.last_mut().expect("a byte") ^= 1;
        std::fs::write(path, bytes).expect("written");
        let altered = unpacked(&file, folder.path()).expect_err("altered");
        assert_eq!(altered.exit(), Exit::NotSo);
        assert!(!folder.path().join("db.lua").exists());
    }
}
