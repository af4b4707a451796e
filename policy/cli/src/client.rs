//! The parent's side of a worker: starts it, asks, and kills it when an answer is late.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use policy_contract::frames::{self, FromWorker, MAX_LINE_BYTES, ToWorker};

/// Longest time of an answer.
pub const CLOCK: Duration = Duration::from_millis(50);

/// Most bytes of messages that wait to be sent. Those that have no answer go with the next that has
/// one, so that a question costs one write.
const UNSENT_BYTES: usize = 64 << 10;

/// Lines that may wait to be read.
const QUEUE: usize = 1024;

/// A running worker.
#[derive(Debug)]
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    unsent: Vec<u8>,
    lines: Receiver<Vec<u8>>,
}

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
pub enum NoLine {
    /// The time is over. The worker is killed.
    #[error("no answer in {} ms", .0.as_millis())]
    Late(Duration),
    /// The worker has ended.
    #[error("the worker ended with {0}")]
    Died(ExitStatus),
    /// The worker cannot be waited for.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The worker sent what no worker sends.
    #[error(transparent)]
    Frame(#[from] frames::FrameError),
}

impl Client {
    /// Starts `program worker` with an empty environment.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg("worker");
        Self::spawn(command)
    }

    /// Starts a command as a worker.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        let (sender, lines) = sync_channel(QUEUE);
        std::thread::spawn(move || {
            let Some(mut output) = output else { return };
            loop {
                let mut line = Vec::new();
                match output.read_until(b'\n', &mut line) {
                    Ok(1..) if sender.send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        Ok(Self {
            input: child.stdin.take(),
            unsent: Vec::new(),
            child,
            lines,
        })
    }

    /// Process of the worker.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message, at the latest when an answer is waited for.
    ///
    /// # Errors
    /// The message is too long, or the worker does not read.
    pub fn send(&mut self, message: &ToWorker) -> Result<(), NoLine> {
        self.unsent.extend(frames::encode(message)?);
        if self.unsent.len() < UNSENT_BYTES {
            return Ok(());
        }
        Ok(self.flush()?)
    }

    fn flush(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        match &mut self.input {
            Some(input) => input.write_all(&unsent),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// No message came in time, or the worker ended.
    pub fn receive(&mut self, clock: Duration) -> Result<FromWorker, NoLine> {
        // A worker that ended while it was idle is found by its closed output.
        let _ = self.flush();
        match self.lines.recv_timeout(clock) {
            Ok(line) => Ok(frames::decode(&line, MAX_LINE_BYTES)?),
            Err(RecvTimeoutError::Timeout) => {
                self.child.kill()?;
                self.child.wait()?;
                Err(NoLine::Late(clock))
            }
            Err(RecvTimeoutError::Disconnected) => Err(NoLine::Died(self.child.wait()?)),
        }
    }

    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// As of [`Self::send`] and [`Self::receive`].
    pub fn request(&mut self, message: &ToWorker, clock: Duration) -> Result<FromWorker, NoLine> {
        match self.send(message) {
            // The worker ended while it was idle.
            Err(NoLine::Io(_)) => {}
            sent => sent?,
        }
        self.receive(clock)
    }

    /// Ends the worker by the end of its input.
    ///
    /// # Errors
    /// The worker cannot be waited for.
    pub fn finish(mut self) -> io::Result<ExitStatus> {
        // A worker that has ended needs no message.
        let _ = self.flush();
        self.input = None;
        self.child.wait()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both fail where the worker has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
