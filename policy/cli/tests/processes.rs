//! A policy is a pure function: two processes give the same bytes to the same questions, and a
//! worker that dies harms no other.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use policy_cli::client::{Client, NoLine};
use policy_cli::made_up::{Subject, question};
use policy_contract::frames::{self, FromWorker, ToWorker};
use policy_contract::{Digest, Input, Scope};

const PATIENCE: Duration = Duration::from_secs(60);
/// Number of the signal that ends a process in any case.
const KILLED: i32 = 9;
/// Questions of a plain run. `cargo xtask escape` asks 100,000.
const QUESTIONS: u64 = 5_000;
/// Pasts that the questions share, each an own VM.
const PASTS: u64 = 40;

/// Uses what could differ: texts, sorting, iteration, and functions of the C library.
const POLICY: &str = r#"
return function(i)
  local parts, votes = {}, {}
  for name, vote in pairs(i.builtin.votes) do
    parts[#parts + 1] = name .. string.format("%.6g", vote)
    votes[name] = math.exp(math.sin(vote)) / 3
  end
  for key in pairs(i) do parts[#parts + 1] = key end
  local load = i.h:q("load1", 0.9, 600) or i.builtin.cu / 7
  votes.load = math.log(load + 1) + math.pow(load + 1, 0.37)
  local text = table.concat(parts, ",")
  local sum = 0
  for n = 1, #text do sum = (sum * 31 + string.byte(text, n)) % 1000003 end
  return { cu = sum, reason = "x", votes = votes, note = string.sub(text, 1, 100) }
end
"#;

fn questions() -> u64 {
    let count = std::env::var("BELLOWS_POLICY_QUESTIONS");
    count.map_or(QUESTIONS, |count| count.parse().expect("a number"))
}

fn load(source: &str) -> ToWorker {
    ToWorker::Load {
        id: 1,
        digest: Digest([0; 32]),
        scope: Scope::Vm,
        source: source.to_owned(),
        params: BTreeMap::new(),
    }
}

fn worker(source: &str) -> Client {
    let program = Path::new(env!("CARGO_BIN_EXE_bellows-policy"));
    let mut client = Client::start(program).expect("a worker");
    let loaded = client.request(&load(source), PATIENCE);
    assert!(
        matches!(loaded, Ok(FromWorker::Loaded { .. })),
        "{loaded:?}"
    );
    client
}

fn ask(n: u64) -> ToWorker {
    ToWorker::Ask {
        n,
        vm: 1,
        id: 1,
        t: 0.0,
        i: Box::new(Input::sample()),
    }
}

/// Answers of a process to all questions, as it wrote them, without their numbers.
fn transcript(first: u64) -> Vec<Vec<u8>> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bellows-policy"))
        .arg("worker")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a worker");
    let mut input = child.stdin.take().expect("its input");
    let sender = std::thread::spawn(move || {
        let mut send = |message: &ToWorker| {
            input
                .write_all(&frames::encode(message).expect("a line"))
                .expect("sent");
        };
        send(&load(POLICY));
        let asked: Vec<_> = (0..PASTS)
            .map(|n| question(&Subject::default(), n))
            .collect();
        for (vm, asked) in (0..).zip(&asked) {
            for (t, s) in &asked.samples {
                let (t, s) = (*t, s.clone());
                send(&ToWorker::Sample { vm, t, s });
            }
        }
        // Another order in each process: what came before may not matter.
        for n in (first..questions()).chain(0..first) {
            let at = usize::try_from(n % PASTS).expect("small");
            let mut input = asked[at].input.clone();
            input.builtin.cu = u32::try_from(n).expect("small");
            send(&ToWorker::Ask {
                n,
                vm: u32::try_from(at).expect("small"),
                id: 1,
                t: asked[at].now,
                i: Box::new(input),
            });
        }
    });
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let lines = output.split(b'\n').map(|line| line.expect("a line"));
    let mut lines: Vec<Vec<u8>> = lines.skip(1).collect();
    sender.join().expect("all sent");
    assert!(child.wait().expect("its end").success());
    lines.rotate_right(usize::try_from(first).expect("small"));
    lines
}

#[test]
fn v01_two_processes_give_the_same_bytes() {
    let other = std::thread::spawn(|| transcript(questions() / 3));
    let (one, other) = (transcript(0), other.join().expect("a transcript"));
    assert_eq!(one.len(), usize::try_from(questions()).expect("small"));
    for (at, (one, other)) in one.iter().zip(&other).enumerate() {
        let text = String::from_utf8_lossy(one);
        assert!(text.contains(r#""op":"said""#), "{at}: {text}");
        assert_eq!(one, other, "{at}");
    }
}

#[test]
fn v03_late_worker_is_killed_and_another_answers() {
    let source = "return function(i)
      local t = table.create(40000, 1)
      for n = 1, 9000 do table.insert(t, 1, 1) table.remove(t, 1) end
      return std.hold('x') end";
    let mut stuck = worker(source);
    let mut fine = worker("return function(i) return std.hold('x') end");
    let pid = stuck.pid();
    let late = stuck.request(&ask(1), Duration::from_millis(50));
    assert!(matches!(late, Err(NoLine::Late(_))), "{late:?}");
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let answered = fine.request(&ask(1), PATIENCE);
    assert!(
        matches!(answered, Ok(FromWorker::Said { .. })),
        "{answered:?}"
    );
}

#[test]
fn v03_worker_has_no_environment_and_its_limits() {
    let client = worker("return function(i) return std.hold('x') end");
    let read = |name: &str| {
        let path = format!("/proc/{}/{name}", client.pid());
        std::fs::read_to_string(path).unwrap_or_default()
    };
    assert_eq!(read("environ"), "");
    let limits = read("limits");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_default()[name.len()..].trim().to_owned();
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(limit("Max address space"), "268435456");
    assert_eq!(limit("Max open files"), "3");
    assert_eq!(limit("Max processes"), "0");
    let status = read("status");
    assert!(status.contains("Seccomp:\t2"), "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

#[test]
fn worker_with_an_environment_starts_again_without() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bellows-policy"))
        .arg("worker")
        .env("SECRET", "x")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a worker");
    let mut input = child.stdin.take().expect("its input");
    let line = frames::encode(&load("return function(i) return std.hold('x') end"));
    input.write_all(&line.expect("a line")).expect("sent");
    let mut answer = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    output.read_line(&mut answer).expect("an answer");
    assert_eq!(answer, "{\"op\":\"loaded\",\"id\":1}\n");
    let environment = std::fs::read(format!("/proc/{}/environ", child.id()));
    assert_eq!(environment.expect("readable"), b"");
    drop(input);
    assert!(child.wait().expect("its end").success());
}

#[test]
fn worker_ends_with_its_input_and_refuses_what_is_no_line() {
    let client = worker("return function(i) return std.hold('x') end");
    assert!(client.finish().expect("its end").success());
    let mut child = Command::new(env!("CARGO_BIN_EXE_bellows-policy"))
        .arg("worker")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a worker");
    let mut input = child.stdin.take().expect("its input");
    input
        .write_all(b"{\"op\":\"run\",\"command\":\"id\"}\n")
        .expect("sent");
    assert_eq!(child.wait().expect("its end").code(), Some(70));
}

/// A worker that ends by a signal only, and does this before.
fn stubborn(before: &str) -> Client {
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(format!("{before} exec /bin/sleep 600"));
    Client::spawn(command).expect("a worker")
}

/// Requirement: V33
#[test]
fn v33_worker_that_goes_on_after_its_output_is_killed() {
    let mut client = stubborn("exec >&-;");
    let line = client.receive(Duration::from_secs(60));
    assert!(
        matches!(&line, Err(NoLine::Died(status)) if status.signal() == Some(KILLED)),
        "{line:?}"
    );
}

/// Requirement: V33
#[test]
fn v33_worker_that_goes_on_after_its_input_is_killed() {
    let status = stubborn("").finish().expect("it is waited for");
    assert_eq!(status.signal(), Some(KILLED));
}

/// Requirement: V33
#[test]
fn v33_worker_that_reads_nothing_holds_up_no_write() {
    let mut client = stubborn("");
    let message = ToWorker::Forget { vm: 1 };
    let refused = (0..1_000_000).find_map(|_| client.send(&message).err());
    assert!(matches!(refused, Some(NoLine::Io(_))), "{refused:?}");
}
