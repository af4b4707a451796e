//! Units: the files `/etc/bellows/render.d/NAME.toml`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{MAX_INPUT_BYTES, template};

/// Text in the check's arguments that stands for the path of the new file.
pub const FILE: &str = "{file}";
/// Most arguments of a command.
const MAX_ARGUMENTS: usize = 64;
/// Most watched files of a unit, and most files of a folder.
const MAX_FILES: usize = 16;

/// One file or folder that follows the guest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// Absolute path that the rendered text is kept at.
    pub destination: PathBuf,
    /// User that the destination belongs to and that check and command run as.
    #[serde(default = "root")]
    pub owner: String,
    /// Mode of the file, or of each file of the folder.
    #[serde(default)]
    pub mode: FileMode,
    /// Text with places for values.
    pub template: Template,
    /// Command that must succeed before the new file takes its place.
    pub check: Option<Vec<String>>,
    /// How the program learns of its new file.
    pub signal: Option<Signal>,
    /// Watched files, by their name in templates.
    #[serde(default)]
    pub files: BTreeMap<String, Watched>,
}

fn root() -> String {
    "root".to_owned()
}

/// What is rendered: a text for a file, or a table of file names and texts for a folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "give a text, or a table of file names and texts"
)]
pub enum Template {
    /// Template of a single file.
    File(String),
    /// Templates of a folder's files, by their names.
    Folder(BTreeMap<String, String>),
}

/// Permission bits, written in octal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FileMode(pub u32);

impl Default for FileMode {
    fn default() -> Self {
        Self(0o644)
    }
}

impl TryFrom<String> for FileMode {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 && mode & 0o400 != 0 => Ok(Self(mode)),
            _ => Err("mode: write octal digits such as \"0644\", without setuid"),
        }
    }
}

/// Ways to tell a program that its file has changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// SIGHUP to the process that this file names.
    Pidfile(PathBuf),
    /// Runs a command.
    Command(Vec<String>),
    /// `POST` to an address of the loopback device.
    Http(Loopback),
}

/// Target of a `POST`, written as `http://127.0.0.1:PORT/PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Loopback {
    /// Address of the loopback device, and the port.
    pub address: SocketAddr,
    /// Path and query of the request.
    pub path: String,
}

impl TryFrom<String> for Loopback {
    type Error = &'static str;

    fn try_from(url: String) -> Result<Self, Self::Error> {
        let parsed = || {
            let uri: hyper::Uri = url.parse().ok()?;
            let address: SocketAddr = uri.authority()?.as_str().parse().ok()?;
            let is_plain = uri.scheme_str() == Some("http") && address.port() != 0;
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            (is_plain && address.ip().is_loopback()).then(|| Self {
                address,
                path: path.to_owned(),
            })
        };
        parsed().ok_or("http: write http://127.0.0.1:PORT/PATH, at a loopback address")
    }
}

/// A file whose content templates use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watched {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// How its content is read.
    #[serde(default)]
    pub format: Format,
}

/// Formats of watched files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One value: the text.
    #[default]
    Text,
    /// A JSON document.
    Json,
}

/// Rules that a unit's file breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{member}: {rule}")]
pub struct UnitError {
    member: String,
    rule: String,
}

fn refuse<T>(member: &str, rule: impl Into<String>) -> Result<T, UnitError> {
    Err(UnitError {
        member: member.to_owned(),
        rule: rule.into(),
    })
}

/// Name of the unit in a file `NAME.toml`. `None` for other files and for names that have more than
/// lower-case letters, digits and `-`.
#[must_use]
pub fn name(file: &str) -> Option<&str> {
    let name = file.strip_suffix(".toml")?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (!name.is_empty() && name.len() <= 40 && name.chars().all(is_plain)).then_some(name)
}

/// Reads a unit and compiles its templates.
///
/// # Errors
/// The first rule that the text breaks.
pub fn parse(text: &str) -> Result<Unit, UnitError> {
    if text.len() > MAX_INPUT_BYTES {
        return refuse("file", format!("it is longer than {MAX_INPUT_BYTES} bytes"));
    }
    let unit: Unit = toml::from_str(text).or_else(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        refuse(&format!("line {line}"), error.message())
    })?;
    check_path("destination", &unit.destination)?;
    if unit.owner.is_empty() || unit.owner.contains([':', '\n']) {
        return refuse("owner", "it is not the name or number of a user");
    }
    check_names(&unit.template)?;
    template::compile(&unit.template).or_else(|error| refuse("template", error))?;
    if let Some(check) = &unit.check {
        check_command("check", check)?;
        if !check.iter().any(|argument| argument.contains(FILE)) {
            return refuse("check", format!("no argument names the new file by {FILE}"));
        }
    }
    match &unit.signal {
        Some(Signal::Pidfile(path)) => check_path("signal.pidfile", path)?,
        Some(Signal::Command(command)) => check_command("signal.command", command)?,
        Some(Signal::Http(_)) | None => {}
    }
    if unit.files.len() > MAX_FILES {
        return refuse("files", format!("there are more than {MAX_FILES}"));
    }
    let mut watched = unit.files.values();
    watched.try_for_each(|watched| check_path("files", &watched.path))?;
    Ok(unit)
}

fn check_names(template: &Template) -> Result<(), UnitError> {
    let Template::Folder(files) = template else {
        return Ok(());
    };
    let is_plain = |name: &String| {
        let is_short = (1..=100).contains(&name.len());
        is_short && !name.starts_with('.') && !name.contains(['/', '\0'])
    };
    if (1..=MAX_FILES).contains(&files.len()) && files.keys().all(is_plain) {
        return Ok(());
    }
    refuse(
        "template",
        format!("give 1 to {MAX_FILES} files, with plain names that do not begin with a dot"),
    )
}

/// An absolute path with a last name, without `.` and `..`.
fn check_path(field: &str, path: &Path) -> Result<(), UnitError> {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let is_whole = path.is_absolute() && path.file_name().is_some();
    if is_whole
        && path.components().all(is_plain)
        && !path.as_os_str().as_encoded_bytes().contains(&0)
    {
        return Ok(());
    }
    refuse(
        field,
        format!("{} is not an absolute path without ..", path.display()),
    )
}

/// A program by its absolute path, as there is no `PATH`, with its arguments.
fn check_command(field: &str, command: &[String]) -> Result<(), UnitError> {
    let Some(program) = command.first() else {
        return refuse(field, "the command is empty");
    };
    check_path(field, Path::new(program))?;
    if command.len() > MAX_ARGUMENTS || command.iter().any(|argument| argument.contains('\0')) {
        return refuse(
            field,
            format!("give at most {MAX_ARGUMENTS} arguments without zero bytes"),
        );
    }
    Ok(())
}

/// User and group number of `owner`, a name or a number, by the text of `/etc/passwd`. The daemon
/// is linked statically, so that the C library's lookup is not there.
#[must_use]
pub fn identity(passwd: &str, owner: &str) -> Option<(u32, u32)> {
    let numbers = |line: &str| -> Option<(u32, u32)> {
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let of_name = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(owner))
        .and_then(numbers);
    of_name.or_else(|| {
        let number: u32 = owner.parse().ok()?;
        let mut of_number = passwd.lines().filter_map(numbers);
        let found = of_number.find(|(user, _)| *user == number);
        Some(found.unwrap_or((number, number)))
    })
}

#[cfg(test)]
mod tests;
