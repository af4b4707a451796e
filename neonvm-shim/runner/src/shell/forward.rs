//! Forwards a guest's console and log to the log of its pod (docs/compatibility/neonvm.md §3.8).
//!
//! QEMU writes to files, which never block: a dead runner or a slow reader of its output does not
//! stall the guest. The forwarder follows the files. It reports bytes that were truncated before it
//! read them.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::clock::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::console::KeptLog;
use super::sync::Notices;
use crate::core::log_framing::LineFramer;

/// Most bytes of a log that one read takes.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks on their way to a reader; the rest waits in the files.
const CHUNKS: usize = 2;
/// Output within this time is forwarded together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Pause between two looks without a notice from the kernel.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for a reader to take the last lines at the runner's end.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Task and thread that forward logs.
pub(super) struct Forwarder {
    task: JoinHandle<()>,
    written: oneshot::Receiver<()>,
    stop: CancellationToken,
}

impl Forwarder {
    /// Forwards the lines of these logs to `out`, by a thread of its own, which a slow reader may
    /// block.
    pub(super) fn start(
        clock: Clock,
        logs: Vec<Arc<KeptLog>>,
        out: impl Write + Send + 'static,
    ) -> Self {
        let (lines, taken) = mpsc::channel(CHUNKS);
        let (end, written) = oneshot::channel();
        let stop = CancellationToken::new();
        std::thread::spawn(move || {
            write(taken, out);
            // The runner may have ended already.
            let _ = end.send(());
        });
        let task = tokio::spawn(forward(clock, logs, lines, stop.clone()));
        Self {
            task,
            written,
            stop,
        }
    }

    /// Forwards the remaining lines and ends; lines that a slow reader has not taken in time are
    /// dropped.
    pub(super) async fn finish(self) {
        self.stop.cancel();
        let rest = async {
            // The task cannot panic.
            let _ = self.task.await;
            let _ = self.written.await;
        };
        if tokio::time::timeout(LAST_LINES, rest).await.is_err() {
            warn!("last lines of the guest not forwarded: the reader is too slow");
        }
    }
}

fn write(mut lines: mpsc::Receiver<Vec<u8>>, mut out: impl Write) {
    while let Some(lines) = lines.blocking_recv() {
        // Without a reader the lines remain in the files.
        let _ = out.write_all(&lines).and_then(|()| out.flush());
    }
}

struct Stream {
    log: Arc<KeptLog>,
    lines: LineFramer,
    is_told: bool,
}

async fn forward(
    clock: Clock,
    logs: Vec<Arc<KeptLog>>,
    to: mpsc::Sender<Vec<u8>>,
    stop: CancellationToken,
) {
    let notices = Notices::of_files(logs.iter().map(|log| log.path()))
        .inspect_err(
            |error| warn!(%error, "failed to watch the guest's logs: lines are forwarded within 1 s"),
        )
        .ok();
    let mut streams: Vec<Stream> = logs
        .into_iter()
        .map(|log| Stream {
            log,
            lines: LineFramer::default(),
            is_told: false,
        })
        .collect();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        // Before the read: bytes written after it belong to the next.
        let ends = stop.is_cancelled();
        let mut is_behind = false;
        for stream in &mut streams {
            let mut out = Vec::new();
            is_behind |= stream.read(&clock, &mut buffer, &mut out);
            if ends && !is_behind {
                stream.lines.finish(&mut out);
            }
            if !out.is_empty() && to.send(out).await.is_err() {
                return;
            }
        }
        if is_behind {
            continue;
        }
        if ends {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = super::sync::changed(notices.as_ref()) => tokio::time::sleep(TOGETHER).await,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

impl Stream {
    /// Reads on, and appends finished lines to `out`. Returns whether there may be more.
    fn read(&mut self, clock: &Clock, buffer: &mut [u8], out: &mut Vec<u8>) -> bool {
        let name = self.log.path().display();
        let piece = match self.log.read(buffer) {
            Ok(piece) => piece,
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    warn!(log = %name, %error, "failed to read a log of the guest");
                }
                return false;
            }
        };
        self.is_told = false;
        if piece.lost > 0 {
            self.lines.finish(out);
            warn!(log = %name, bytes = piece.lost, "guest wrote faster than its log was read: bytes lost");
        }
        let read = buffer.get(..piece.bytes).unwrap_or_default();
        if read.is_empty() {
            self.lines.poll(clock.now(), out);
            // Everything was read, so that a rotation loses nothing.
            if let Err(error) = self.log.rotate() {
                warn!(log = %name, %error, "log not rotated");
            }
            return false;
        }
        self.lines.take(clock.now(), read, out);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::process::append_file;
    use std::io;
    use std::sync::mpsc as channel;

    /// A reader as slow as the test.
    struct Reader(channel::SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(dir: &tempfile::TempDir, name: &str, bound: u64) -> (Arc<KeptLog>, std::fs::File) {
        let path = dir.path().join(name);
        let file = append_file(&path).unwrap();
        (Arc::new(KeptLog::new(path, bound)), file)
    }

    async fn next(lines: channel::Receiver<Vec<u8>>) -> (channel::Receiver<Vec<u8>>, String) {
        let taken = tokio::task::spawn_blocking(move || {
            let line = lines.recv().expect("the writer is there");
            (lines, String::from_utf8(line).expect("a text"))
        });
        taken.await.unwrap()
    }

    #[tokio::test]
    async fn console_and_log_reach_the_reader_to_the_last_line() {
        let temp = tempfile::tempdir().unwrap();
        let (console, mut kernel) = log(&temp, "console.log", 1 << 20);
        let (guest, mut program) = log(&temp, "guest.log", 1 << 20);
        kernel.write_all(b"of an earlier runner\n").unwrap();
        console.skip();
        let (to, lines) = channel::sync_channel(8);
        let forwarder = Forwarder::start(Clock::new(), vec![console, guest], Reader(to));
        kernel.write_all(b"[ 0.0] Linux\r\n").unwrap();
        let (lines, line) = next(lines).await;
        assert_eq!(line, "[ 0.0] Linux\n");
        program.write_all(b"LOG: ready\nLOG: unfin").unwrap();
        let (lines, line) = next(lines).await;
        assert_eq!(line, "LOG: ready\n");
        kernel.write_all(b"Power down").unwrap();
        forwarder.finish().await;
        let rest: Vec<u8> = lines.iter().flatten().collect();
        let rest = String::from_utf8(rest).unwrap();
        assert_eq!(rest, "Power down\nLOG: unfin\n");
    }

    #[tokio::test]
    async fn blocked_reader_delays_no_guest_and_takes_no_disk() {
        const BOUND: u64 = 256 << 10;
        let temp = tempfile::tempdir().unwrap();
        let (guest, mut program) = log(&temp, "guest.log", BOUND);
        let (to, lines) = channel::sync_channel(0);
        let forwarder = Forwarder::start(Clock::new(), vec![Arc::clone(&guest)], Reader(to));
        let line = vec![b'x'; 1023];
        for _ in 0..4096 {
            program.write_all(&line).unwrap();
            program.write_all(b"\n").unwrap();
            tokio::task::yield_now().await;
            // As the VM's driver does, which does not wait for a reader.
            guest.rotate().unwrap();
            assert!(std::fs::metadata(guest.path()).unwrap().len() <= BOUND + 1024);
        }
        let (lines, first) = next(lines).await;
        assert!(first.lines().all(|line| line.len() == 1023), "whole lines");
        // The end of the runner does not wait either.
        drop(lines);
        forwarder.finish().await;
    }
}
