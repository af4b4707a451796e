//! A server in this process whose disk loses writes that were not synced when the power goes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use apiserver::shell::db::Storage;
use apiserver::{Config, start_with};
use futures::future::BoxFuture;
use rand::Rng as _;
use tokio_util::sync::CancellationToken;

use super::disk::{Disk, Medium};
use super::server::Server;

/// How long the disk may take to come to the operation at which the power goes.
const PATIENCE: Duration = Duration::from_millis(200);
/// Most operations of the disk before the power goes: those of a few commits.
const MOST_OPERATIONS: u64 = 60;

pub(crate) struct PowerCut {
    dir: PathBuf,
    disk: Arc<Disk>,
    running: Mutex<Option<Running>>,
}

struct Running {
    base: String,
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

impl PowerCut {
    pub(crate) fn start(dir: &Path, disk: Disk) -> Self {
        let disk = Arc::new(disk);
        let running = Mutex::new(Some(start(dir, &disk)));
        let dir = dir.to_owned();
        Self { dir, disk, running }
    }

    pub(crate) fn dropped_writes(&self) -> usize {
        self.disk.dropped()
    }

    /// The power goes and comes back.
    pub(crate) fn cut(&self) {
        self.disk.cut();
        let mut running = self.running.lock().expect("no panic");
        if let Some(running) = running.take() {
            running.end();
        }
        self.disk.come_back();
        *running = Some(start(&self.dir, &self.disk));
    }
}

impl Server for PowerCut {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn base(&self) -> String {
        let running = self.running.lock().expect("no panic");
        running.as_ref().expect("it runs").base.clone()
    }

    /// The power goes in the middle of a commit, where there is one.
    fn suffer(&self, _number: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let operations = rand::rng().random_range(0..MOST_OPERATIONS);
            let cut = self.disk.cut_after(operations);
            let _ = tokio::time::timeout(PATIENCE, cut).await;
            tokio::task::block_in_place(|| self.cut());
        })
    }
}

impl Running {
    fn end(self) {
        self.stop.cancel();
        self.thread.join().expect("the server's thread");
    }
}

impl Drop for PowerCut {
    fn drop(&mut self) {
        if let Ok(running) = self.running.get_mut()
            && let Some(running) = running.take()
        {
            running.end();
        }
    }
}

fn start(dir: &Path, disk: &Arc<Disk>) -> Running {
    let config = Config {
        state_dir: dir.to_owned(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        names: Vec::new(),
        seen: Vec::new(),
        audit_log: None,
    };
    let storage: Arc<dyn Storage> = Arc::new(Medium(Arc::clone(disk)));
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let server = start_with(config, storage).await.expect("it starts");
            let base = format!("https://{}", server.addr);
            sender.send(base).expect("it is waited for");
            server.run(stopped).await.expect("it ends well");
        });
    });
    let base = receiver.recv().expect("it starts");
    Running { base, stop, thread }
}
