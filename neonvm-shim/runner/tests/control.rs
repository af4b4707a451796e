//! QEMU alone, with nothing of ours in it: how often does a guest that writes to its memory break
//! when it is moved? The scenarios of ours that are run again for that fault are judged beside this
//! rate; both are printed at the end of a run.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Kit, PATIENCE, kit};
use test_records::retry::{Attempts, known_tcg_bug};
use test_records::{Missing, skip};

/// How often the guest is moved.
const MOVES: u32 = 4;
/// Begins each line that the guest writes once it has written to its memory and read it again.
const ROUND: &str = "round ";
/// Ends the line of a round that read something else than it wrote. Stands for `LOST` in [`INIT`].
const LOST: &str = "what was written is lost";
/// The guest's only program. It writes 32 MiB, reads them again, and compares the checksums.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs -o size=200m tmp /tmp
n=0
while :; do
    wrote=$(/bin/busybox dd if=/dev/urandom bs=1M count=32 2>/dev/null |
        /bin/busybox tee /tmp/written | /bin/busybox md5sum)
    read=$(/bin/busybox md5sum < /tmp/written)
    n=$((n+1))
    lost=
    [ \"$wrote\" = \"$read\" ] || lost=' LOST'
    echo \"round $n$lost\" > /dev/console
done
";

/// Moves a guest by QMP alone. A panic or a lost page after a move is counted as QEMU's; silence is
/// a failure.
#[tokio::test]
async fn guest_that_is_moved_by_qmp_alone_runs_on_or_breaks() {
    let test = "guest_that_is_moved_by_qmp_alone_runs_on_or_breaks";
    let Some(kit) = kit(test).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(initrd) = initrd(test, dir.path()) else {
        return;
    };
    let mut source = Qemu::start(&kit, &initrd, dir.path(), 0, None);
    source.is_past(0);
    for number in 1..=MOVES {
        let rounds = source.rounds();
        let socket = dir.path().join(format!("stream{number}"));
        let mut target = Qemu::start(&kit, &initrd, dir.path(), number, Some(&socket));
        source.send(&socket);
        drop(source);
        target.is_received();
        let fault = target.goes_on_or_breaks(rounds);
        let is_broken = fault.is_some();
        Attempts::of("a guest that QMP alone moves").again(fault);
        if is_broken {
            drop(target);
            target = Qemu::start(&kit, &initrd, dir.path(), MOVES + number, None);
            target.is_past(0);
        }
        source = target;
    }
}

/// A RAM disk with the program of the guest.
fn initrd(test: &str, dir: &Path) -> Option<PathBuf> {
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() || Command::new("cpio").arg("--version").output().is_err() {
        skip(test, Missing::Tool, "busybox-static and cpio");
        return None;
    }
    let root = dir.join("root");
    for part in ["bin", "dev", "tmp"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    fs::write(root.join("init"), INIT.replace("LOST", LOST)).unwrap();
    let packed = dir.join("initrd.cpio");
    let pack = "chmod 755 init && find . | cpio --quiet -o -H newc";
    let done = Command::new("sh")
        .args(["-c", pack])
        .current_dir(&root)
        .stdout(fs::File::create(&packed).unwrap())
        .status();
    assert!(done.unwrap().success(), "cpio");
    Some(packed)
}

/// A QEMU and the connection to its QMP.
struct Qemu {
    process: Child,
    console: PathBuf,
    qmp: BufReader<UnixStream>,
}

impl Qemu {
    /// Starts one, which waits for a guest at a socket if there is one.
    fn start(kit: &Kit, initrd: &Path, dir: &Path, number: u32, receive: Option<&Path>) -> Self {
        let [console, qmp] = ["console", "qmp"].map(|it| dir.join(format!("{it}{number}")));
        let mut command = Command::new(&kit.programs.qemu_system);
        command
            .args("-machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 512M".split(' '))
            .args("-nodefaults -no-user-config -display none -no-reboot".split(' '))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", qmp.display()))
            .arg("-kernel")
            .arg(&kit.image.kernel)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/init"])
            .stdin(Stdio::null());
        if let Some(socket) = receive {
            command.arg("-incoming");
            command.arg(format!("unix:{}", socket.display()));
        }
        let process = command.spawn().expect("QEMU starts");
        let stream = wait_for("QMP", || UnixStream::connect(&qmp).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut qemu = Self {
            process,
            console,
            qmp: BufReader::new(stream),
        };
        let greeting = qemu.line();
        assert!(greeting["QMP"].is_object(), "{greeting}");
        qemu.execute("qmp_capabilities", &json!({}));
        qemu
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.qmp.read_line(&mut line).expect("QMP answers");
        serde_json::from_str(&line).expect("a line of JSON")
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Value {
        let text = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.qmp.get_mut().write_all(text.as_bytes()).unwrap();
        loop {
            let mut answer = self.line();
            assert!(answer["error"].is_null(), "{command}: {answer}");
            if answer.get("return").is_some() {
                return answer["return"].take();
            }
        }
    }

    /// Sends the guest, and waits until all of it is sent.
    fn send(&mut self, socket: &Path) {
        let converge = json!([{"capability": "auto-converge", "state": true}]);
        self.execute(
            "migrate-set-capabilities",
            &json!({"capabilities": converge}),
        );
        let parameters = json!({"max-bandwidth": 1u64 << 30, "downtime-limit": 1000});
        self.execute("migrate-set-parameters", &parameters);
        self.execute(
            "migrate",
            &json!({"uri": format!("unix:{}", socket.display())}),
        );
        wait_for("the guest to be sent", || {
            let state = self.execute("query-migrate", &json!({}));
            assert_ne!(state["status"], "failed", "{state}");
            (state["status"] == "completed").then_some(())
        });
    }

    /// Waits until all of a guest has come.
    fn is_received(&mut self) {
        wait_for("the guest to come", || {
            let state = self.execute("query-status", &json!({}));
            (state["status"] == "running").then_some(())
        });
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// The newest round that its console shows.
    fn rounds(&self) -> u32 {
        let console = self.console();
        let rounds = console.lines().filter_map(|line| line.strip_prefix(ROUND));
        rounds
            .filter_map(|it| it.split_whitespace().next()?.parse().ok())
            .max()
            .unwrap_or(0)
    }

    fn is_past(&self, rounds: u32) {
        wait_for("the guest to write", || {
            (self.rounds() > rounds).then_some(())
        });
    }

    /// Waits until the guest is two rounds further, one of them begun here, or shows a fault.
    fn goes_on_or_breaks(&self, rounds: u32) -> Option<String> {
        wait_for("the guest to go on", || {
            let console = self.console();
            let lost = console.lines().find(|line| line.contains(LOST));
            let fault = known_tcg_bug("tcg", &console).or_else(|| lost.map(ToOwned::to_owned));
            (fault.is_some() || self.rounds() > rounds + 1).then_some(fault)
        })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Polls until there is something.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        #[expect(clippy::disallowed_methods, reason = "poll interval of a bounded wait")]
        std::thread::sleep(Duration::from_millis(50));
    }
}
