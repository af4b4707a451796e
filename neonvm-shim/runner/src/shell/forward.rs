//! What a guest writes to its console and its log, on its way to the log of its pod
//! (docs/compatibility/neonvm.md §3.8).
//!
//! QEMU writes to files, and a file takes everything at once: whatever becomes of us or of whoever
//! reads our standard output, the guest waits for nobody. Here the files are read on; what is cut
//! off them before it could be is lost and told.

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
use crate::core::lines::Lines;

/// Most of a log that is read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks on their way to a reader; the rest waits in the files.
const CHUNKS: usize = 2;
/// What is written within this time is read at a time.
const TOGETHER: Duration = Duration::from_millis(20);
/// Between two looks at logs that no notice came of.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the last lines may take to be read when the runner ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Logs that are forwarded.
pub(super) struct Forwarder {
    task: JoinHandle<()>,
    written: oneshot::Receiver<()>,
    stop: CancellationToken,
}

impl Forwarder {
    /// Forwards the lines of these logs to `out`, by a thread of its own, which a slow reader may
    /// hold up as long as it likes.
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
            // Nobody waits for a runner that has ended.
            let _ = end.send(());
        });
        let task = tokio::spawn(forward(clock, logs, lines, stop.clone()));
        Self {
            task,
            written,
            stop,
        }
    }

    /// Forwards what is there, and ends; what a slow reader has not read by then is not forwarded.
    pub(super) async fn finish(self) {
        self.stop.cancel();
        let rest = async {
            // It cannot panic.
            let _ = self.task.await;
            let _ = self.written.await;
        };
        if tokio::time::timeout(LAST_LINES, rest).await.is_err() {
            warn!("the last lines of the guest are not forwarded: nobody reads them");
        }
    }
}

fn write(mut lines: mpsc::Receiver<Vec<u8>>, mut out: impl Write) {
    while let Some(lines) = lines.blocking_recv() {
        // Where nobody reads any more, nobody misses them; the files are there still.
        let _ = out.write_all(&lines).and_then(|()| out.flush());
    }
}

struct Stream {
    log: Arc<KeptLog>,
    lines: Lines,
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
            |error| warn!(%error, "no notice of the guest's lines: they are seen within 1 s"),
        )
        .ok();
    let mut streams: Vec<Stream> = logs
        .into_iter()
        .map(|log| Stream {
            log,
            lines: Lines::default(),
            is_told: false,
        })
        .collect();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        // Before the look: what is written after it is seen by the next.
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
    /// Reads on, and appends finished lines to `out`; whether there may be more.
    fn read(&mut self, clock: &Clock, buffer: &mut [u8], out: &mut Vec<u8>) -> bool {
        let name = self.log.path().display();
        let piece = match self.log.read(buffer) {
            Ok(piece) => piece,
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    warn!(log = %name, %error, "a log of the guest cannot be read");
                }
                return false;
            }
        };
        self.is_told = false;
        if piece.lost > 0 {
            self.lines.finish(out);
            warn!(log = %name, bytes = piece.lost, "lines of the guest came faster than they were read: these are lost");
        }
        let read = buffer.get(..piece.bytes).unwrap_or_default();
        if read.is_empty() {
            self.lines.poll(clock.now(), out);
            // All of it was read: a good moment, for nothing is lost by it.
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

    /// Whoever reads the lines, as slowly as the test does.
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
    async fn console_and_log_reach_the_reader_and_the_last_words_too() {
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
    async fn a_reader_that_stands_still_holds_up_nobody_and_costs_no_disk() {
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
            // As the supervisor does, which waits for no reader.
            guest.rotate().unwrap();
            assert!(std::fs::metadata(guest.path()).unwrap().len() <= BOUND + 1024);
        }
        let (lines, first) = next(lines).await;
        assert!(first.lines().all(|line| line.len() == 1023), "whole lines");
        // Nor does it when the runner ends.
        drop(lines);
        forwarder.finish().await;
    }
}
