//! As a plugin (`kubectl bellows`) the commands address the cluster that kubectl addresses. kubectl
//! passes its plugins only the environment. The configuration is therefore read as kubectl reads
//! it: all files of `KUBECONFIG` merged, else `~/.kube/config`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use kube::config::Kubeconfig;

use crate::fail::{Fail, Outcome};

/// Namespace if the configuration names none.
const NAMESPACE: &str = "default";

/// Whether kubectl started this process. It looks for programs named `kubectl-NAME`.
pub(crate) fn is_plugin() -> bool {
    is_plugins_name(std::env::args_os().next())
}

/// Files that kubectl reads, by descending precedence.
pub(crate) fn files() -> Vec<PathBuf> {
    files_by(&|name| std::env::var_os(name))
}

/// The merged content of kubectl's files.
///
/// # Errors
///
/// 64 if none of them exists, or one is no kubeconfig.
pub(crate) fn config() -> Outcome<Kubeconfig> {
    merged(&files())
}

/// Default namespace of a command: as a plugin that of kubectl's current context, else `default`.
pub(crate) fn namespace() -> String {
    static CHOSEN: OnceLock<String> = OnceLock::new();
    let choose = || {
        let config = is_plugin().then(config)?.ok()?;
        namespace_of(&config)
    };
    let chosen = CHOSEN.get_or_init(|| choose().unwrap_or_else(|| NAMESPACE.to_owned()));
    chosen.clone()
}

fn is_plugins_name(program: Option<OsString>) -> bool {
    let name = program
        .map(PathBuf::from)
        .and_then(|path| path.file_name().map(OsString::from));
    name.is_some_and(|name| name.to_string_lossy().starts_with("kubectl-"))
}

fn files_by(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let named = variable("KUBECONFIG").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let named: Vec<PathBuf> = named.collect();
    if !named.is_empty() {
        return named;
    }
    let usual = variable("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    usual.into_iter().collect()
}

fn merged(files: &[PathBuf]) -> Outcome<Kubeconfig> {
    let there = files.iter().filter(|path| path.is_file());
    let mut all = None;
    for path in there {
        let wrong = |error: &dyn std::error::Error| {
            Fail::usage(format!("{}: {}", path.display(), daemon_kit::chain(error)))
                .rule("it must be a kubeconfig")
        };
        let next = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
        all = Some(match all {
            None => next,
            Some(all) => Kubeconfig::merge(all, next).map_err(|error| wrong(&error))?,
        });
    }
    all.ok_or_else(|| {
        let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        Fail::usage(format!("kubectl has no configuration: {}", names.join(", ")))
            .rule("as kubectl's plugin, bellows asks the cluster that kubectl asks")
            .fix("name one: --kubeconfig FILE, or KUBECONFIG; for what runs on this machine, without kubectl: bellows")
    })
}

fn namespace_of(config: &Kubeconfig) -> Option<String> {
    let current = config.current_context.as_ref()?;
    let mut contexts = config.contexts.iter();
    let found = contexts.find(|context| context.name == *current)?;
    let namespace = found.context.as_ref()?.namespace.clone();
    namespace.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_named_kubectl_something_is_a_plugin() {
        assert!(is_plugins_name(Some(
            "/usr/local/bin/kubectl-bellows".into()
        )));
        assert!(!is_plugins_name(Some("/kubectl-x/bellows".into())));
        assert!(!is_plugins_name(None));
    }

    #[test]
    fn kubectls_files_are_those_it_reads() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        assert_eq!(files_by(&home), [PathBuf::from("/home/me/.kube/config")]);
        let named = |name: &str| Some(if name == "HOME" { "/h" } else { "/a::/b" }.into());
        assert_eq!(files_by(&named), [PathBuf::from("/a"), "/b".into()]);
        assert!(files_by(&|_| None).is_empty());
    }

    #[test]
    fn kubectls_files_count_together_and_none_is_an_error_that_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, gone] = ["one", "two", "gone"].map(|name| dir.path().join(name));
        std::fs::write(&one, "current-context: second\n").unwrap();
        let context =
            "contexts: [{name: second, context: {cluster: c, user: u, namespace: team}}]\n";
        std::fs::write(&two, context).unwrap();
        let config = merged(&[gone.clone(), one.clone(), two]).unwrap();
        assert_eq!(namespace_of(&config).as_deref(), Some("team"));
        assert_eq!(
            namespace_of(&merged(std::slice::from_ref(&one)).unwrap()),
            None
        );
        let fail = merged(std::slice::from_ref(&gone)).unwrap_err();
        assert_eq!(fail.exit() as u8, 64);
        assert!(fail.what().contains(&gone.display().to_string()), "{fail}");
        std::fs::write(&one, "contexts: 7\n").unwrap();
        assert_eq!(merged(&[one]).unwrap_err().exit() as u8, 64);
    }
}
