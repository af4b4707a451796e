//! `bellows backup --store` and `bellows restore --store`: copies of the API's store.

use std::path::{Path, PathBuf};

use apiserver::{STORE_FILE, check_store, copy_store};
use clap::Args;
use hyper::http::Method;
use serde_json::json;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::instance::lock::{self, Holder, StateLock};
use crate::terminal::out;
use crate::unix_http::{UnixHttpError, exchange};

/// Copy the store of the API to a file.
///
/// Works while `bellows up` runs, and without it. The store holds the objects of all VMs, and
/// secrets: the file is readable by its owner only. It holds no disk.
#[derive(Debug, Clone, Args)]
pub(crate) struct BackupArgs {
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE", required = true)]
    store: PathBuf,
}

/// Put a copy of the store back.
///
/// Refuses while `bellows up` runs. The store that was there is kept beside it. Guests that run are
/// not touched: those whose pods the copy does not have are left alone at the next `bellows up`,
/// and `bellows adopt` brings their objects back.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestoreArgs {
    /// File to put in the store's place; it is copied
    #[arg(long, value_name = "FILE", required = true)]
    store: PathBuf,
}

pub(crate) async fn run(context: &Context, args: &BackupArgs) -> Outcome {
    let state = context.state()?;
    let file = std::path::absolute(&args.store)
        .map_err(|error| Fail::usage(format!("{}: {error}", args.store.display())))?;
    if file.symlink_metadata().is_ok() {
        return Err(Fail::usage(format!("{} exists already", file.display()))
            .rule("a backup never replaces a file")
            .fix("name another file, or remove that one"));
    }
    let revision = if lock::holder(&state) == Holder::Nobody {
        let store = state.path().join(STORE_FILE);
        if !store.exists() {
            return Err(Fail::not_so(format!("{} does not exist", store.display()))
                .fix("name the right place: --state-dir DIR"));
        }
        let _lock = StateLock::take(&state)?;
        let copied = copy_store(&store, &file);
        let copied = copied.map_err(|error| Fail::missing(daemon_kit::chain(&error)))?;
        copied.revision
    } else {
        let body = json!({"file": file});
        let socket = state.admin_socket();
        let asked = exchange(&socket, Method::POST, "/v1/store/backup", Some(&body)).await;
        let answer = asked.map_err(|error| match error {
            UnixHttpError::Refused { text, .. } => Fail::missing(text),
            error => Fail::try_again(daemon_kit::chain(&error)),
        })?;
        answer["revision"].as_u64().unwrap_or(0)
    };
    out(&format!(
        "the store at revision {revision} is in {}",
        file.display()
    ));
    Ok(())
}

pub(crate) fn restore(context: &Context, args: &RestoreArgs) -> Outcome {
    let state = context.state()?;
    let store = state.path().join(STORE_FILE);
    let _lock = StateLock::take(&state)?;
    let broken = |error: std::io::Error| {
        Fail::missing(format!("{} is not put back: {error}", args.store.display()))
    };
    let draft = store.with_extension("restored");
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(broken(error)),
        _ => {}
    }
    let whole = read(&args.store)?;
    daemon_kit::durable::replace(&draft, &whole).map_err(broken)?;
    let position = check_store(&draft).map_err(|error| {
        let _ = std::fs::remove_file(&draft);
        Fail::missing(format!(
            "{} is no store that can be read: {}",
            args.store.display(),
            daemon_kit::chain(&error)
        ))
        .rule("the store that is there is not touched before the copy was read")
    })?;
    let old = keep_old(&store).map_err(broken)?;
    std::fs::rename(&draft, &store).map_err(broken)?;
    daemon_kit::durable::sync_folder_of(&store).map_err(broken)?;
    out(&format!(
        "the store is at revision {} again, from {}",
        position.revision,
        args.store.display()
    ));
    if let Some(old) = old {
        out(&format!(
            "the one that was there is kept as {}",
            old.display()
        ));
    }
    out(
        "start it: bellows up --detach; guests that it does not have are left alone, see bellows adopt --list",
    );
    Ok(())
}

fn read(file: &Path) -> Outcome<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        Fail::usage(format!("{} cannot be read: {error}", file.display()))
            .fix("snapshots that bellows up made are in snapshots/ of the state directory")
    })
}

/// Renames the existing store to `api.redb.replaced-N`.
fn keep_old(store: &Path) -> std::io::Result<Option<PathBuf>> {
    if !store.exists() {
        return Ok(None);
    }
    let name = |n: u32| store.with_file_name(format!("{STORE_FILE}.replaced-{n}"));
    let free = (1..u32::MAX).map(name).find(|path| !path.exists());
    let old = free.ok_or(std::io::ErrorKind::AlreadyExists)?;
    std::fs::rename(store, &old)?;
    Ok(Some(old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_store_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join(STORE_FILE);
        assert_eq!(keep_old(&store).unwrap(), None);
        for n in [1, 2] {
            std::fs::write(&store, n.to_string()).unwrap();
            let old = keep_old(&store).unwrap().unwrap();
            assert!(old.ends_with(format!("api.redb.replaced-{n}")), "{old:?}");
        }
    }
}
