//! A program that reads the same files as a monitor and answers over the same kind of socket, and
//! does nothing else. Its time is what this machine alone costs.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::timing::PATIENCE;

/// Length of request and answer in bytes, about that of the monitor's.
const LENGTH: usize = 120;
/// Most that is read of a file, bytes.
const FILE_LIMIT: usize = 16 * 1024;

/// The program with one connection to it. Killed when dropped.
pub(super) struct Bare {
    process: Child,
    stream: TcpStream,
}

impl Bare {
    /// Starts this program again, to read these files for each answer.
    pub(super) fn start(files: &[&Path]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--answer-with")
            .args(files)
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the bare program")?;
        let mut port = String::new();
        let stdout = process.stdout.as_mut().context("its stdout")?;
        BufReader::new(stdout).read_line(&mut port)?;
        let port: u16 = port.trim().parse().context("port of the bare program")?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { process, stream })
    }

    /// Time from a request to its answer.
    pub(super) fn timed_call(&mut self) -> Result<Duration> {
        let mut frame = [0; LENGTH];
        let began = Instant::now();
        self.stream.write_all(&frame)?;
        self.stream.read_exact(&mut frame)?;
        Ok(began.elapsed())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program: prints its port, and answers one connection until that ends.
#[expect(clippy::print_stdout, reason = "the benchmark waits for this line")]
pub(super) fn answer_with(files: &[PathBuf]) -> Result<()> {
    let files: Vec<_> = files.iter().map(File::open).collect::<Result<_, _>>()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut frame, mut content) = ([0; LENGTH], vec![0; FILE_LIMIT]);
    while stream.read_exact(&mut frame).is_ok() {
        for file in &files {
            ensure!(file.read_at(&mut content, 0)? > 0, "a file is empty");
        }
        stream.write_all(&frame)?;
    }
    Ok(())
}
