//! Runs programs of the host, and confined programs of images. They get a clean environment, and
//! end with this process. Their output is bounded, and progress is reported.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use crate::error::{BuildError, disk_full};
use crate::mirror;
use crate::progress::{Reporter, TICK};
use crate::sandbox::Cell;
use crate::search_path::SEARCH_PATH;
pub(crate) use crate::search_path::find;

/// 2023-11-14T22:13:20Z, the time of every file in an image.
pub(crate) const EPOCH: i64 = 1_700_000_000;

/// Bytes of a program's standard error that an error quotes.
const TAIL_BYTES: usize = 2048;

/// Longest line of output in bytes. A longer one is split.
const LINE_BYTES: u64 = 4096;

/// Lines in the channel from the reading thread. A program writes fewer in a tick.
const LINES_WAITING: usize = 1024;

pub(crate) struct Tool {
    program: String,
    arguments: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    directory: Option<PathBuf>,
    step: String,
    cell: Option<Cell>,
}

impl Tool {
    /// A program by name or path. `step` completes "failed while ...".
    pub(crate) fn new(program: &str, step: impl Into<String>) -> Self {
        Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            step: step.into(),
            cell: None,
        }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Runs it as a program of an image, isolated from this machine.
    pub(crate) fn confined(mut self, cell: Cell) -> Self {
        self.cell = Some(cell);
        self
    }

    pub(crate) fn run(self, reporter: &mut Reporter<'_>) -> Result<(), BuildError> {
        self.run_with(Vec::new(), reporter, &mut |_, _| {})
    }

    /// Runs it with `input` on its standard input.
    pub(crate) fn run_fed(
        self,
        input: Vec<u8>,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        self.run_with(input, reporter, &mut |_, _| {})
    }

    /// Runs it and returns its standard output, which is kept in memory.
    pub(crate) fn output(self, reporter: &mut Reporter<'_>) -> Result<String, BuildError> {
        let mut all = String::new();
        self.run_with(Vec::new(), reporter, &mut |line, _| {
            all.push_str(line);
            all.push('\n');
        })?;
        Ok(all)
    }

    /// Runs it and passes every line of its standard output to `on_line`.
    pub(crate) fn run_with(
        self,
        input: Vec<u8>,
        reporter: &mut Reporter<'_>,
        on_line: &mut dyn FnMut(&str, &mut Reporter<'_>),
    ) -> Result<(), BuildError> {
        let mut child = self.spawn(Stdio::piped(), Stdio::piped())?;
        let (sender, lines) = mpsc::sync_channel(LINES_WAITING);
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        // The three pipes are served concurrently, so that no side blocks on a full one.
        let (status, tail) = thread::scope(|scope| {
            scope.spawn(move || {
                if let Some(mut stdin) = stdin {
                    // The status shows a program that ends before it has read everything.
                    let _ = stdin.write_all(&input);
                }
            });
            scope.spawn(move || stdout.map(|out| forward_lines(out, &sender)));
            let tail = scope.spawn(move || stderr.map(read_tail).unwrap_or_default());
            loop {
                match lines.recv_timeout(TICK) {
                    Ok(line) => on_line(&line, reporter),
                    Err(mpsc::RecvTimeoutError::Timeout) => reporter.tick(),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            (child.wait(), tail.join().unwrap_or_default())
        });
        let status = status.map_err(|source| self.io("wait for", source))?;
        self.judge(status, &tail)
    }

    /// Starts it with the caller's pipes. Finish with [`Tool::judge`].
    pub(crate) fn spawn(&self, stdin: Stdio, stdout: Stdio) -> Result<Child, BuildError> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).env_clear();
        if let Some(cell) = &self.cell {
            command
                .args(cell.command(self.variables()))
                .env("PATH", SEARCH_PATH)
                .env("LC_ALL", "C.UTF-8");
        } else {
            find(&self.program).ok_or_else(|| missing(&self.program, &self.step))?;
            command.envs(self.variables());
        }
        command.arg(&self.program).args(&self.arguments);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        command.spawn().map_err(|source| self.io("start", source))
    }

    /// Environment of the program. A later variable overrides an earlier one.
    fn variables(&self) -> impl Iterator<Item = (&str, OsString)> {
        let always = [
            ("PATH", SEARCH_PATH.into()),
            ("LC_ALL", "C.UTF-8".into()),
            ("TZ", "UTC".into()),
            ("HOME", "/root".into()),
            ("SOURCE_DATE_EPOCH", EPOCH.to_string().into()),
        ];
        let own = self.environment.iter();
        always
            .into_iter()
            .chain(own.map(|(name, value)| (name.as_str(), value.clone())))
    }

    /// Converts the exit status into a result.
    pub(crate) fn judge(&self, status: ExitStatus, stderr: &str) -> Result<(), BuildError> {
        if status.success() {
            return Ok(());
        }
        let text = mirror::without_hosts(stderr);
        if text.contains("No space left on device") {
            let place = self.directory.clone().unwrap_or_else(|| PathBuf::from("/"));
            return Err(disk_full(&place, 0));
        }
        Err(BuildError::ToolFailed {
            tool: self.program.clone(),
            step: self.step.clone(),
            status: status.to_string(),
            tail: text.trim().replace('\n', "; "),
        })
    }

    fn io(&self, action: &'static str, source: std::io::Error) -> BuildError {
        BuildError::Io {
            action,
            path: PathBuf::from(&self.program),
            source,
        }
    }
}

/// Reads standard error to its end and returns the last bytes.
pub(crate) fn read_tail(mut stderr: impl Read) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0u8; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk) {
        kept.extend_from_slice(&chunk[..n]);
        let surplus = kept.len().saturating_sub(TAIL_BYTES);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

fn forward_lines(stdout: impl Read, lines: &mpsc::SyncSender<String>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut reader).take(LINE_BYTES).read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line)
            .trim_end_matches('\n')
            .to_owned();
        line.clear();
        if lines.send(text).is_err() {
            return;
        }
    }
}

pub(crate) fn missing(program: &str, step: &str) -> BuildError {
    BuildError::MissingTool {
        tool: program.to_owned(),
        why: format!("for {step}"),
        package: crate::requirements::package_of(program).to_owned(),
    }
}

/// Runs two programs with the output of the first as the input of the second.
pub(crate) fn pipe(
    first: &Tool,
    second: &Tool,
    reporter: &mut Reporter<'_>,
) -> Result<(), BuildError> {
    let mut source = first.spawn(Stdio::null(), Stdio::piped())?;
    let output = source.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut sink = second.spawn(output, Stdio::null())?;
    let (from_source, from_sink) = (source.stderr.take(), sink.stderr.take());
    let (sender, ended) = mpsc::sync_channel::<()>(1);
    let (source_stderr, sink_stderr) = thread::scope(|scope| {
        let source_stderr = scope.spawn(move || from_source.map(read_tail).unwrap_or_default());
        let sink_stderr = scope.spawn(move || {
            // The sender is dropped when the second program closes its output.
            let _sender = sender;
            from_sink.map(read_tail).unwrap_or_default()
        });
        while ended.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
            reporter.tick();
        }
        (
            source_stderr.join().unwrap_or_default(),
            sink_stderr.join().unwrap_or_default(),
        )
    });
    let sink_status = sink.wait().map_err(|e| second.io("wait for", e))?;
    let source_status = source.wait().map_err(|e| first.io("wait for", e))?;
    // The second program is judged first: if it fails, the first fails with a broken pipe.
    second.judge(sink_status, &sink_stderr)?;
    first.judge(source_status, &source_stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(use_it: impl FnOnce(&mut Reporter<'_>) -> T) -> (T, usize) {
        let mut reports = 0;
        let mut sink = |_| reports += 1;
        let result = use_it(&mut Reporter::new(&mut sink));
        (result, reports)
    }

    fn shell(script: &str) -> Tool {
        Tool::new("sh", "testing").args(["-c", script])
    }

    /// Requirement: N46
    #[test]
    fn a_failing_program_is_quoted() {
        let (result, _) = run(|r| shell("echo out; echo 'it is broken' >&2; exit 3").run(r));
        let text = result.unwrap_err().to_string();
        assert!(
            text.contains("sh failed while testing") && text.contains("it is broken"),
            "{text}"
        );
        assert!(text.contains("exit status: 3"), "{text}");
    }

    /// Requirement: N46
    #[test]
    fn a_missing_program_names_its_package() {
        let (result, _) = run(|r| Tool::new("mke2fs-none", "testing").run(r));
        assert!(
            matches!(result, Err(BuildError::MissingTool { tool, .. }) if tool == "mke2fs-none")
        );
    }

    /// Requirement: N46
    #[test]
    fn a_full_disk_is_its_own_error() {
        let text = "tar: x: Cannot write: No space left on device";
        let (result, _) = run(|r| shell(&format!("echo '{text}' >&2; exit 2")).run(r));
        assert!(matches!(result, Err(BuildError::DiskFull { .. })));
    }

    /// Requirement: N46
    #[test]
    fn a_long_program_reports_while_it_runs() {
        let (result, reports) = run(|r| shell("sleep 0.9").run(r));
        result.unwrap();
        assert!(reports >= 2, "{reports}");
        let (result, reports) = run(|r| pipe(&shell("sleep 0.9"), &shell("cat"), r));
        result.unwrap();
        assert!(reports >= 2, "{reports}");
    }

    /// Requirement: N46
    #[test]
    fn output_and_input_of_any_length_pass() {
        let input = vec![b'x'; 1 << 20];
        let mut length = 0;
        let (result, _) = run(|r| {
            Tool::new("cat", "testing").run_with(input, r, &mut |line, _| length += line.len())
        });
        result.unwrap();
        assert_eq!(length, 1 << 20);
        let (result, _) =
            run(|r| shell("head -c 3000000 /dev/zero | tr '\\0' e >&2; exit 1").run(r));
        let text = result.unwrap_err().to_string();
        assert!(text.len() < TAIL_BYTES + 200, "{}", text.len());
    }

    /// Requirement: N46
    #[test]
    fn the_environment_is_clean() {
        let (text, _) = run(|r| Tool::new("env", "testing").env("EXTRA", "1").output(r));
        let text = text.unwrap();
        let names: Vec<_> = text.lines().filter_map(|l| l.split('=').next()).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            ["EXTRA", "HOME", "LC_ALL", "PATH", "SOURCE_DATE_EPOCH", "TZ"]
        );
    }
}
