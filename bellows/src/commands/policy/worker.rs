//! Asks recorded questions again, by a worker of `bellows-policy`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use agent::{Oracle, Reasked};
use policy_contract::frames::{FromWorker, MAX_LINE_BYTES, MAX_POLICIES, ToWorker, decode, encode};
use policy_contract::{Digest, Fault, Input, Spec};

use super::program;
use crate::fail::{Fail, Outcome};

/// Folder of the policies' sources, beside those of the journals.
pub(crate) const SOURCES: &str = "policies";

/// Most bytes of messages that wait to be sent. Samples go with the next question, so that a
/// question costs one write.
const UNSENT_BYTES: usize = 64 << 10;

/// A worker and the sources that were recorded.
#[derive(Debug)]
pub(crate) struct WorkerOracle {
    folder: Option<PathBuf>,
    specs: BTreeMap<String, Option<Arc<Spec>>>,
    /// Numbers of loaded policies; `None` for one that the worker refused.
    loaded: BTreeMap<String, Option<u32>>,
    worker: Option<Worker>,
    loads: u32,
    last_question: u64,
}

#[derive(Debug)]
struct Worker {
    child: Child,
    stdin: ChildStdin,
    unsent: Vec<u8>,
    stdout: BufReader<ChildStdout>,
}

/// The recorded source with this digest.
pub(super) fn read_spec(folder: &Path, digest: &str) -> Option<Spec> {
    // The digest comes from a file, so it must not name another folder.
    let wanted = Digest::of(digest)?;
    let path = folder.join(format!("{digest}.json"));
    let spec: Spec = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (spec.digest() == wanted).then_some(spec)
}

impl WorkerOracle {
    /// Starts the worker. `folder` holds the sources.
    ///
    /// # Errors
    ///
    /// 69 if the program is missing.
    pub(crate) fn start(folder: Option<PathBuf>) -> Outcome<Self> {
        let program = program::find()?;
        let mut child = Command::new(&program)
            .arg("worker")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                Fail::missing(format!("{} cannot be run: {error}", program.display()))
            })?;
        let worker = match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => Worker {
                child,
                stdin,
                unsent: Vec::new(),
                stdout: BufReader::new(stdout),
            },
            _ => return Err(Fail::bug("the worker has no pipes")),
        };
        Ok(Self {
            folder,
            specs: BTreeMap::new(),
            loaded: BTreeMap::new(),
            worker: Some(worker),
            loads: 0,
            last_question: 0,
        })
    }

    /// Sends a message, at the latest when an answer is waited for. A worker that cannot be reached
    /// is given up.
    fn send(&mut self, message: &ToWorker) -> Option<()> {
        let line = encode(message).ok()?;
        let worker = self.worker.as_mut()?;
        worker.unsent.extend(line);
        if worker.unsent.len() < UNSENT_BYTES {
            return Some(());
        }
        self.flush()
    }

    fn flush(&mut self) -> Option<()> {
        let worker = self.worker.as_mut()?;
        let unsent = std::mem::take(&mut worker.unsent);
        let sent = worker.stdin.write_all(&unsent);
        self.keep_if(sent.is_ok())
    }

    fn receive(&mut self) -> Option<FromWorker> {
        self.flush()?;
        let worker = self.worker.as_mut()?;
        let mut line = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = (&mut worker.stdout)
            .take(limit)
            .read_until(b'\n', &mut line);
        let message = read.ok().and_then(|_| decode(&line, MAX_LINE_BYTES).ok());
        self.keep_if(message.is_some())?;
        message
    }

    fn keep_if(&mut self, is_good: bool) -> Option<()> {
        if !is_good {
            self.worker = None;
        }
        is_good.then_some(())
    }

    /// Number of a policy in the worker.
    fn load(&mut self, digest: &str) -> Option<u32> {
        if let Some(known) = self.loaded.get(digest) {
            return *known;
        }
        let spec = self.spec(digest)?;
        let id = self.loads % MAX_POLICIES + 1;
        self.loads += 1;
        self.loaded.retain(|_, of| *of != Some(id));
        self.send(&ToWorker::Load {
            id,
            digest: spec.digest(),
            scope: spec.scope,
            source: spec.source.clone(),
            params: spec.params.clone(),
        })?;
        let is_loaded = matches!(self.receive()?, FromWorker::Loaded { id: of } if of == id);
        let number = is_loaded.then_some(id);
        self.loaded.insert(digest.to_owned(), number);
        number
    }
}

impl Oracle for WorkerOracle {
    fn spec(&mut self, digest: &str) -> Option<Arc<Spec>> {
        if !self.specs.contains_key(digest) {
            let folder = self.folder.as_deref();
            let spec = folder
                .and_then(|folder| read_spec(folder, digest))
                .map(Arc::new);
            self.specs.insert(digest.to_owned(), spec);
        }
        self.specs.get(digest).cloned().flatten()
    }

    fn forget(&mut self, vm: u32) {
        let _ = self.send(&ToWorker::Forget { vm });
    }

    fn sample(&mut self, vm: u32, at: f64, samples: BTreeMap<String, f64>) {
        let _ = self.send(&ToWorker::Sample {
            vm,
            t: at,
            s: samples,
        });
    }

    fn ask(&mut self, digest: &str, vm: u32, at: f64, input: &Input) -> Option<Reasked> {
        let Some(id) = self.load(digest) else {
            // A policy that the worker refuses has this fault in the record too.
            let is_refused = self.loaded.contains_key(digest);
            return is_refused.then_some(Err(Fault::Syntax));
        };
        self.last_question += 1;
        let n = self.last_question;
        self.send(&ToWorker::Ask {
            n,
            vm,
            id,
            t: at,
            i: Box::new(input.clone()),
        })?;
        let message = self.receive()?;
        match &message {
            FromWorker::Said { n: of, .. } if *of == n => {
                let answer = message.answer()?;
                Some(answer.map_err(|_| Fault::Output))
            }
            FromWorker::Fault { n: of, kind, .. } if *of == n => Some(Err(*kind)),
            _ => None,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
