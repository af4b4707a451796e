//! `bellows policy library`: policies to begin with, in the program itself.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::terminal::out;

/// Policies to begin with.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum LibraryCommand {
    /// List them, with what each is for
    List(ListArgs),
    /// Print the source of one, and its fixtures with -o json
    Show(ShowArgs),
    /// Write source and fixtures of one as files, for check, test and apply
    Write(WriteArgs),
}

/// How to print the list.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// The policy to print.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// Name in the library
    #[arg(value_name = "NAME")]
    name: String,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// The policy to write.
#[derive(Debug, Clone, Args)]
pub(crate) struct WriteArgs {
    /// Name in the library
    #[arg(value_name = "NAME")]
    name: String,
    /// Directory to write into. It must exist, and files of the policy's name must not
    #[arg(value_name = "DIR", default_value = ".")]
    into: PathBuf,
}

/// A policy of the library.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    name: &'static str,
    source: &'static str,
    fixtures: &'static str,
}

macro_rules! sample {
    ($name:literal) => {
        Sample {
            name: $name,
            source: include_str!(concat!("../../../../policy/library/", $name, ".lua")),
            fixtures: include_str!(concat!("../../../../policy/library/", $name, ".toml")),
        }
    };
}

const LIBRARY: [Sample; 8] = [
    sample!("batch"),
    sample!("builtin"),
    sample!("cache"),
    sample!("ci_runner"),
    sample!("database"),
    sample!("office"),
    sample!("web"),
    sample!("workers"),
];

impl Sample {
    fn named(name: &str) -> Outcome<Self> {
        let found = LIBRARY.into_iter().find(|sample| sample.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = LIBRARY.iter().map(|sample| sample.name).collect();
            Fail::usage(format!("the library has no policy {name:?}"))
                .rule(format!("it has {}", names.join(", ")))
                .fix("bellows policy library list")
        })
    }

    /// The comment that the source begins with.
    fn about(self) -> String {
        let comments = self
            .source
            .lines()
            .map_while(|line| line.strip_prefix("--"));
        comments.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// Writes both files, or none.
    fn write(self, into: &Path) -> Outcome<[PathBuf; 2]> {
        let source = into.join(format!("{}.lua", self.name));
        let fixtures = into.join(format!("{}.toml", self.name));
        create(&source, self.source)?;
        if let Err(fail) = create(&fixtures, self.fixtures) {
            // Only the file that was made just now.
            let _ = std::fs::remove_file(&source);
            return Err(fail);
        }
        Ok([source, fixtures])
    }
}

fn create(path: &Path, text: &str) -> Outcome {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        let fail = Fail::usage(format!("{} cannot be written: {error}", path.display()));
        match error.kind() {
            ErrorKind::AlreadyExists => fail
                .rule("a file that is there is not replaced")
                .fix("name another directory: bellows policy library write NAME DIR"),
            ErrorKind::NotFound => fail.rule("the directory must exist"),
            _ => fail,
        }
    })
}

pub(super) fn run(context: &Context, command: &LibraryCommand) -> Outcome {
    match command {
        LibraryCommand::List(args) => list(context, args.output),
        LibraryCommand::Show(args) => {
            let sample = Sample::named(&args.name)?;
            if matches!(args.output, Format::Json | Format::Yaml) {
                return print_value(args.output, &sample);
            }
            out(sample.source.trim_end());
            Ok(())
        }
        LibraryCommand::Write(args) => {
            for path in Sample::named(&args.name)?.write(&args.into)? {
                out(&path.display().to_string());
            }
            Ok(())
        }
    }
}

fn list(context: &Context, format: Format) -> Outcome {
    if matches!(format, Format::Json | Format::Yaml) {
        let policies: Vec<_> = LIBRARY
            .iter()
            .map(|sample| json!({"name": sample.name, "about": sample.about()}))
            .collect();
        return print_value(format, &json!({ "policies": policies }));
    }
    let mut table = Table::new(&["NAME", "ABOUT"]);
    for sample in LIBRARY {
        let about = sample.about();
        let first = about.split_inclusive(". ").next().unwrap_or_default();
        table.row(vec![sample.name.into(), first.trim_end().into()]);
    }
    table.print(context.paint());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V02
    #[test]
    fn v02_library_of_the_command_has_each_policy_of_the_checkout() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/library");
        let entries = std::fs::read_dir(folder).expect("a folder");
        let files: Vec<PathBuf> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert_eq!(files.len(), 2 * LIBRARY.len());
        for sample in LIBRARY {
            assert!(sample.about().len() > 10, "{}", sample.name);
            let has = |ending: &str| {
                let name = format!("{}.{ending}", sample.name);
                files.iter().any(|file| file.ends_with(&name))
            };
            assert!(has("lua") && has("toml"), "{}", sample.name);
        }
    }

    /// Requirement: V02
    #[test]
    fn v02_written_policy_is_that_of_the_library_and_replaces_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let sample = Sample::named("database").expect("it is there");
        let [source, fixtures] = sample.write(folder.path()).expect("written");
        let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
        assert_eq!(read(&source), sample.source);
        assert_eq!(read(&fixtures), sample.fixtures);
        std::fs::write(&fixtures, "mine").expect("written");
        std::fs::remove_file(&source).expect("removed");
        let refused = sample.write(folder.path()).expect_err("a file is there");
        assert!(refused.to_string().contains("is not replaced"), "{refused}");
        assert_eq!(read(&fixtures), "mine");
        assert!(!source.exists(), "half of it was written");
    }

    #[test]
    fn unknown_policy_is_refused_with_those_that_are_there() {
        let refused = Sample::named("data").expect_err("no such policy");
        assert!(refused.to_string().contains("builtin, cache"), "{refused}");
    }
}
