//! What `kubectl get neonvm -w` shows: the demo looks at the VM through it, as a person would.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::Value;

#[derive(Default)]
struct Seen {
    newest: Option<Value>,
    events: u64,
}

/// A running watch. Dropping it ends it.
pub(super) struct Watch {
    child: Child,
    seen: Arc<Mutex<Seen>>,
}

impl Watch {
    /// Starts `kubectl`, which must print objects as JSON, one after the other.
    pub(super) fn start(kubectl: &mut Command) -> Result<Self> {
        let mut child = kubectl
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("could not start kubectl")?;
        let stdout = child.stdout.take().context("kubectl has no stdout")?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let to = Arc::clone(&seen);
        std::thread::spawn(move || {
            let objects = serde_json::Deserializer::from_reader(BufReader::new(stdout));
            for object in objects.into_iter::<Value>().map_while(Result::ok) {
                let mut seen = to.lock().unwrap_or_else(PoisonError::into_inner);
                seen.newest = Some(object);
                seen.events += 1;
            }
        });
        Ok(Self { child, seen })
    }

    /// The newest object, once there is one.
    pub(super) fn newest(&self) -> Option<Value> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.newest.clone()
    }

    /// How often the object was shown.
    pub(super) fn events(&self) -> u64 {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .events
    }

    /// An error when kubectl has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("kubectl get neonvm -w ended ({status})"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Already ended: both calls then do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn consecutive_objects_are_separated() {
        let script = r#"printf '{"a":\n1}\n{"a":2}{"a":3}\n{"a'; exec sleep 60"#;
        let mut watch = Watch::start(Command::new("sh").args(["-c", script])).expect("started");
        let began = Instant::now();
        while watch.events() < 3 {
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        assert_eq!(watch.newest(), Some(serde_json::json!({"a": 3})));
        watch.check().expect("still there");
    }

    #[test]
    fn a_watch_that_ends_is_an_error() {
        let mut watch = Watch::start(&mut Command::new("false")).expect("started");
        let began = Instant::now();
        while watch.check().is_ok() {
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    }
}
