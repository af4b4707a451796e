//! The parent's side of a worker: starts it, asks, and kills it when an answer is late.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use policy_contract::frames::{self, FromWorker, MAX_LINE_BYTES, ToWorker};

/// Longest time of an answer.
pub const CLOCK: Duration = Duration::from_millis(50);

/// Most bytes of messages that wait to be sent. Those that have no answer go with the next that has
/// one, so that a question costs one write.
const UNSENT_BYTES: usize = 64 << 10;

/// Most bytes that one read takes.
const READ_BYTES: usize = 16 << 10;

/// Longest time in which a worker takes a write, and in which it ends after its input or output has
/// ended.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Time between two looks for the end of a worker.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A running worker.
#[derive(Debug)]
pub struct Client {
    child: Child,
    input: Option<UnixStream>,
    unsent: Vec<u8>,
    lines: Lines,
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
        // Sockets, because reads and writes of a pipe have no time limit. A thread that reads would
        // cost each answer two changes of the thread.
        let (own, theirs) = UnixStream::pair()?;
        let (input, their_input) = UnixStream::pair()?;
        input.set_write_timeout(Some(END_LIMIT))?;
        let child = command
            .env_clear()
            .stdin(OwnedFd::from(their_input))
            .stdout(OwnedFd::from(theirs))
            .spawn()?;
        Ok(Self {
            input: Some(input),
            unsent: Vec::new(),
            child,
            lines: Lines {
                output: own,
                buffer: Vec::new(),
                limit: None,
            },
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
        match self.lines.next(clock)? {
            Next::Line(line) => Ok(frames::decode(&line, MAX_LINE_BYTES)?),
            Next::Late => {
                self.child.kill()?;
                self.child.wait()?;
                Err(NoLine::Late(clock))
            }
            Next::Ended => Err(NoLine::Died(self.ended()?)),
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

    /// Waits for the end of the worker, and kills it when it goes on.
    #[expect(
        clippy::disallowed_methods,
        reason = "the end of a child is its state, and it has a deadline"
    )]
    fn ended(&mut self) -> io::Result<ExitStatus> {
        let until = Instant::now() + END_LIMIT;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.child.kill()?;
        self.child.wait()
    }

    /// Ends the worker by the end of its input. One that goes on is killed.
    ///
    /// # Errors
    /// The worker cannot be waited for.
    pub fn finish(mut self) -> io::Result<ExitStatus> {
        // A worker that has ended needs no message.
        let _ = self.flush();
        self.input = None;
        self.ended()
    }
}

/// Lines of a worker.
#[derive(Debug)]
struct Lines {
    output: UnixStream,
    /// Bytes that were read and belong to no line that was taken.
    buffer: Vec<u8>,
    /// Time limit of a read.
    limit: Option<Duration>,
}

enum Next {
    Line(Vec<u8>),
    Late,
    Ended,
}

impl Lines {
    /// Waits for the next line. One that is too long is given as far as it was read.
    fn next(&mut self, clock: Duration) -> io::Result<Next> {
        let until = Instant::now() + clock;
        let mut chunk = [0; READ_BYTES];
        let mut searched = 0;
        loop {
            let rest = &self.buffer[searched..];
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let behind = self.buffer.split_off(searched + at + 1);
                return Ok(Next::Line(std::mem::replace(&mut self.buffer, behind)));
            }
            searched = self.buffer.len();
            if searched > MAX_LINE_BYTES {
                return Ok(Next::Line(std::mem::take(&mut self.buffer)));
            }
            if Instant::now() >= until {
                return Ok(Next::Late);
            }
            if self.limit != Some(clock) {
                self.output.set_read_timeout(Some(clock))?;
                self.limit = Some(clock);
            }
            match self.output.read(&mut chunk) {
                Ok(0) => return Ok(Next::Ended),
                Ok(count) => self.buffer.extend(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The next look at the time ends it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The worker ended with lines that it had not read.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(Next::Ended);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both fail where the worker has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that another thread writes, in these pieces.
    fn lines(pieces: &[&[u8]]) -> Lines {
        let (own, mut theirs) = UnixStream::pair().expect("a pair");
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        std::thread::spawn(move || {
            for piece in pieces {
                // The reader may have had enough.
                let _ = theirs.write_all(&piece);
            }
        });
        Lines {
            output: own,
            buffer: Vec::new(),
            limit: None,
        }
    }

    #[test]
    fn lines_come_whole_from_any_pieces() {
        let mut lines = lines(&[b"{\"a\"", b":1}\n{}\n", b"rest"]);
        let mut next = || lines.next(Duration::from_secs(60)).expect("it reads");
        for expected in [&b"{\"a\":1}\n"[..], b"{}\n"] {
            assert!(matches!(next(), Next::Line(line) if line == expected));
        }
        assert!(matches!(next(), Next::Ended));
    }

    #[test]
    fn line_without_end_is_cut_and_silence_is_late() {
        let long = vec![b'x'; MAX_LINE_BYTES + READ_BYTES];
        let mut cut = lines(&[&long]);
        let next = cut.next(Duration::from_secs(60)).expect("it reads");
        assert!(matches!(next, Next::Line(line) if line.len() > MAX_LINE_BYTES));
        let (own, _theirs) = UnixStream::pair().expect("a pair");
        let mut silent = Lines {
            output: own,
            buffer: b"half".to_vec(),
            limit: None,
        };
        let next = silent.next(Duration::from_millis(10)).expect("it reads");
        assert!(matches!(next, Next::Late));
    }
}
