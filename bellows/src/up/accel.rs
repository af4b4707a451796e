//! Determines which accelerator guests get, so that `status` shows it before the first VM. The
//! result is stored in the state directory, where runners read it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use neonvm_runner::accel;
use neonvm_runner::config::AccelChoice;
use vm_images::Store;

use super::base::Base;
use crate::places::{RUNTIME_IMAGE, store_dir};

/// QEMU's program in the runtime image.
const QEMU_PROGRAM: &str = "qemu-system-x86_64";

/// The accelerator and its reason, once determined.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learned(Arc<OnceLock<String>>);

impl Learned {
    pub(crate) fn label(&self) -> String {
        self.0
            .get()
            .cloned()
            .unwrap_or_else(|| "being found out".into())
    }
}

/// Starts to determine the accelerator. The start of `bellows up` does not wait for it.
pub(crate) fn learn(base: &Base, choice: AccelChoice) -> Learned {
    let learned = Learned::default();
    let (answer, state) = (learned.clone(), base.state.path().to_owned());
    tokio::spawn(async move {
        let _ = answer.0.set(find_out(choice, &state).await);
    });
    learned
}

async fn find_out(choice: AccelChoice, knowledge: &Path) -> String {
    let image = store_dir()
        .ok()
        .filter(|dir| dir.is_dir())
        .and_then(|dir| Store::open(dir).ok()?.resolve(RUNTIME_IMAGE).ok().flatten());
    match image.and_then(|image| image.program(QEMU_PROGRAM)) {
        Some(qemu) => accel::resolve(choice, &qemu, Some(knowledge))
            .await
            .reason(),
        None => format!("not known: no image {RUNTIME_IMAGE}; build it: bellows image build"),
    }
}
