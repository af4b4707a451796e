//! The program of the image, as files for `vmstart`.

use std::collections::BTreeMap;

use crate::container::config::Process;
use crate::container::context::{Account, Root};
use crate::error::BuildError;
use crate::guest::quote;

/// Search path of an image's programs if the image sets none.
pub(super) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn numbers(account: &Account) -> String {
    let numbers: Vec<String> = account.groups.iter().map(u32::to_string).collect();
    numbers.join(",")
}

/// Environment of the image's program.
pub(super) fn env(process: &Process) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([("PATH".to_owned(), SEARCH_PATH.to_owned())]);
    let own = process.env.iter().flatten();
    env.extend(own.filter_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        is_variable(name).then(|| (name.to_owned(), value.to_owned()))
    }));
    env
}

/// Whether a shell accepts the text as the name of a variable.
fn is_variable(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Files for `vmstart` with command, environment and user of the image's program, by name.
pub(super) fn program(
    root: Root<'_>,
    process: &Process,
) -> Result<Vec<(&'static str, String)>, BuildError> {
    let account = root.account(process.user.as_deref().unwrap_or_default())?;
    let words = |words: &Option<Vec<String>>| {
        let words = words.iter().flatten().map(|word| quote(word));
        words.collect::<Vec<_>>().join(" ")
    };
    let mut variables = env(process);
    variables
        .entry("HOME".to_owned())
        .or_insert_with(|| account.home.clone());
    let variables = variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quote(value)));
    let groups = match numbers(&account) {
        none if none.is_empty() => "--clear-groups".to_owned(),
        some => format!("--groups {some}"),
    };
    let workdir = process.working_dir.clone().filter(|dir| !dir.is_empty());
    let workdir = quote(&workdir.unwrap_or_else(|| "/".to_owned()));
    let user = format!(
        "uid={}\ngid={}\ngroups={}\nworkdir={workdir}\n",
        account.uid,
        account.gid,
        quote(&groups)
    );
    Ok(vec![
        ("cmd", words(&process.cmd)),
        ("entrypoint", words(&process.entrypoint)),
        ("env", variables.collect()),
        ("user", user),
    ])
}
