//! The command line, and what it comes to.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, ValueEnum};
use serde_json::{Value, json};
use tracing_subscriber::filter::Targets;
use transport::Address;

use super::config::{Config, FileCache, HOOKS_FOLDER, READY_LIMIT, Secret, SettingName, TlsFiles};
use super::logging;
use crate::core::cache::CacheMode;
use crate::core::decision::Watched;
use crate::core::file_cache::{Sizing, parse_ppm};
use crate::core::memory::Rules;
use protocol::release::RELEASE;
use protocol::time::Span;
use protocol::units::Bytes;

/// Longest time of `--exit-when-alone`, seconds: a week.
const MOST_SECONDS_ALONE: u64 = 604_800;

/// The monitor inside a VM: approves shrinks by what is in use, asks for growth when memory climbs,
/// sizes the database's file cache, and serves the host metrics the agent reads.
///
/// It never sets memory.high or any other limit of the group it watches.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "vm-monitor",
    version = RELEASE,
    after_help = "Exit status: 0 ended by a signal, 64 wrong usage or configuration, 69 something needed is missing \
                  (the agents' address in use, the database with --file-cache=on), 70 a bug, \
                  75 no agent or no schedule for as long as --exit-when-alone says."
)]
pub struct Args {
    /// Address agents dial, IP:PORT or vsock:PORT or vsock:CID:PORT; the WebSocket is at /monitor
    #[arg(
        short,
        long,
        value_name = "ADDR",
        default_value = "0.0.0.0:10369",
        env = "VM_MONITOR_ADDR"
    )]
    addr: String,
    /// Address of /metrics, /healthz, /readyz and /debug/state; without them, and with a warning,
    /// if another program has its port
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "0.0.0.0:9100",
        env = "VM_MONITOR_METRICS_ADDR"
    )]
    metrics_addr: String,
    /// File with the token that agents must show, at least 16 characters: who asks for the
    /// WebSocket without `Authorization: Bearer TOKEN` is answered 401, and the present agent
    /// stays. Read at the start
    #[arg(long, value_name = "PATH", env = "VM_MONITOR_AGENT_TOKEN_FILE")]
    agent_token_file: Option<PathBuf>,
    /// Certificate of the monitor, PEM. With the two below, agents are spoken to by TLS only, and
    /// only those with a certificate. All three files are read again when they change
    #[arg(long, value_name = "PATH", env = "VM_MONITOR_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate, PEM, mode 0600 or 0400
    #[arg(long, value_name = "PATH", env = "VM_MONITOR_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Authority that has signed the certificates of agents, PEM
    #[arg(long, value_name = "PATH", env = "VM_MONITOR_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// Group to watch: a name under the cgroup root, or the absolute path of any folder with a
    /// cgroup v2 group's files
    #[arg(short, long, value_name = "NAME|PATH", env = "VM_MONITOR_CGROUP")]
    cgroup: Option<String>,
    /// Where cgroup v2 is mounted
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/cgroup")]
    cgroup_root: PathBuf,
    /// What to watch without --cgroup
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Fallback::Machine)]
    without_cgroup: Fallback,
    /// Where the kernel's process file system is mounted
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    proc_root: PathBuf,
    /// Connection to the database whose file cache is managed. Better given by the environment than
    /// on a command line, if it holds a password
    #[arg(
        short,
        long,
        value_name = "CONNECTION",
        env = "VM_MONITOR_PGCONNSTR",
        hide_env_values = true
    )]
    pgconnstr: Option<String>,
    /// Whether to manage the file cache, given --pgconnstr
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Manage::Auto)]
    file_cache: Manage,
    /// Database setting that limits the file cache
    #[arg(
        long,
        value_name = "NAME",
        default_value = "neon.file_cache_size_limit"
    )]
    file_cache_setting: String,
    /// Database setting the limit is kept below; empty for none
    #[arg(long, value_name = "NAME", default_value = "neon.max_file_cache_size")]
    file_cache_max_setting: String,
    /// Largest share of the usable memory for the file cache
    #[arg(long, value_name = "FRACTION", default_value = "0.75")]
    file_cache_fraction: String,
    /// Usable memory left to everything else first, MiB
    #[arg(long, value_name = "MIB", default_value = "256")]
    file_cache_reserve_mib: String,
    /// How much more than its size the file cache costs, as a share of it
    #[arg(long, value_name = "FRACTION", default_value = "0.1")]
    file_cache_spread: String,
    /// Whether growth is asked for before use has reached its threshold: by forecast, by memory
    /// pressure (PSI), after an out-of-memory kill. Off leaves the rule of the mean alone
    #[arg(long, value_enum, value_name = "WHETHER", default_value_t = Switch::On)]
    ask_early: Switch,
    /// Folder whose executable files are run before a shrink, which they may veto, and after a
    /// growth; empty for none
    #[arg(
        long,
        value_name = "PATH",
        default_value = HOOKS_FOLDER,
        env = "VM_MONITOR_HOOKS"
    )]
    hooks: PathBuf,
    /// Whether the group's working set is estimated, by reclaiming a little of its memory every ten
    /// seconds until that is missed. Needs --cgroup
    #[arg(
        long,
        value_enum,
        value_name = "WHETHER",
        default_value_t = Switch::Off,
        env = "VM_MONITOR_WORKING_SET"
    )]
    working_set: Switch,
    /// Whether the group is brought down to its new size, a little at a time, before a shrink is
    /// approved; if that hurts the shrink is refused. Needs --cgroup
    #[arg(
        long,
        value_enum,
        value_name = "WHETHER",
        default_value_t = Switch::Off,
        env = "VM_MONITOR_SOFT_SQUEEZE"
    )]
    soft_squeeze: Switch,
    /// Unix socket, mode 0600, on which root asks for the state of this process and has it execute
    /// another program. Without it there is none
    #[arg(long, value_name = "PATH", env = "VM_MONITOR_CONTROL")]
    control: Option<PathBuf>,
    /// File to which the schedule of upgrades is written that the agent has for this machine.
    /// Without it the agent is not asked
    #[arg(long, value_name = "PATH", env = "VM_MONITOR_SCHEDULE")]
    schedule: Option<PathBuf>,
    /// Seconds without an agent, or without a schedule that the agent is asked for, after which the
    /// process ends with status 75: what started it then starts it again, or another version.
    /// Without it the monitor stays, and the guest keeps its size
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS_ALONE),
        env = "VM_MONITOR_EXIT_WHEN_ALONE"
    )]
    exit_when_alone: Option<u64>,
    /// Log filter: a level, or target=level pairs with commas
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "info",
        env = "BELLOWS_LOG"
    )]
    log: String,
    /// Check the configuration, print it with the origin of each value, and exit
    #[arg(long)]
    check_config: bool,
    /// Check with these options what can be checked without an address: the files of token and TLS,
    /// the readings of memory, the timer. Exit with status 0, or say what is missing
    #[arg(long)]
    self_test: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fallback {
    /// The whole machine
    Machine,
    /// Nothing: approve every shrink, as far as memory goes
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Manage {
    /// If the database has the setting
    Auto,
    /// Yes, and do not start without it
    On,
    /// Leave the file cache alone
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// Turn it on
    On,
    /// Turn it off
    Off,
}

/// What the process does with its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Serve until a signal.
    Serve,
    /// Print the configuration.
    CheckConfig,
    /// Check what the configuration names.
    SelfTest,
}

/// What the command line comes to.
#[derive(Debug)]
pub struct Invocation {
    /// Checked values of all options that the monitor runs with.
    pub config: Config,
    /// What to log.
    pub filter: Targets,
    /// Each value with its origin.
    pub origins: Value,
    /// What to do with the configuration.
    pub task: Task,
}

/// Everything that is wrong with a configuration, one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Help, version, or words that are no options.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// Options that read, with values that do not do.
    #[error(transparent)]
    Config(#[from] Problems),
}

/// Reads and checks the process's arguments (and, for some options, its environment).
///
/// # Errors
/// [`CliError`]; all wrong values are reported at once.
pub fn parse<I, T>(arguments: I) -> Result<Invocation, CliError>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let matches = Args::command().try_get_matches_from(arguments)?;
    let args = Args::from_arg_matches(&matches)?;
    let mut problems = Problems(Vec::new());
    let config = args.resolve(&mut problems);
    let filter = logging::parse_filter(&args.log);
    let filter = filter.map_err(|error| problems.0.push(format!("--log: {error}")));
    match (config, filter) {
        (Some(config), Ok(filter)) if problems.0.is_empty() => Ok(Invocation {
            config,
            filter,
            origins: origins(&matches),
            task: args.task(),
        }),
        _ => Err(problems.into()),
    }
}

impl Args {
    const fn task(&self) -> Task {
        match (self.check_config, self.self_test) {
            (true, _) => Task::CheckConfig,
            (false, true) => Task::SelfTest,
            (false, false) => Task::Serve,
        }
    }

    fn control(&self) -> Result<Option<PathBuf>, String> {
        file_path(self.control.as_ref(), "/run/vm-monitor/control.sock")
    }

    fn schedule(&self) -> Result<Option<PathBuf>, String> {
        file_path(self.schedule.as_ref(), "/run/vm-monitor/schedule")
    }

    /// The configuration, or what is wrong with it. `None` goes with at least one problem.
    fn resolve(&self, problems: &mut Problems) -> Option<Config> {
        let addr = problems.take("--addr", Address::parse(&self.addr));
        let metrics_addr = problems.take("--metrics-addr", parse_addr(&self.metrics_addr));
        let both = addr.zip(metrics_addr);
        if both.is_some_and(|(addr, metrics)| addr.is_taken_by(metrics)) {
            problems
                .0
                .push("--addr and --metrics-addr are the same".into());
        }
        let cgroup = self
            .cgroup
            .as_deref()
            .map(|name| group_folder(&self.cgroup_root, name));
        let cgroup = cgroup.and_then(|folder| problems.take("--cgroup", folder));
        if self.working_set == Switch::On && self.cgroup.is_none() {
            problems
                .0
                .push("--working-set=on needs --cgroup".to_owned());
        }
        if self.soft_squeeze == Switch::On && self.cgroup.is_none() {
            problems
                .0
                .push("--soft-squeeze=on needs --cgroup".to_owned());
        }
        let tls = problems.take("--tls-cert, --tls-key, --tls-client-ca", self.tls());
        let file_cache = self.file_cache(problems);
        let control = problems.take("--control", self.control());
        let schedule = problems.take("--schedule", self.schedule());
        let watched = match (&self.cgroup, self.without_cgroup) {
            (Some(_), _) => Watched::Cgroup,
            (None, Fallback::Machine) => Watched::Machine,
            (None, Fallback::Nothing) => Watched::Nothing,
        };
        Some(Config {
            addr: addr?,
            agent_token: self.agent_token_file.clone(),
            tls: tls?,
            metrics_addr: metrics_addr?,
            watched,
            cgroup,
            cgroup_root: self.cgroup_root.clone(),
            proc_root: self.proc_root.clone(),
            file_cache,
            rules: Rules {
                asks_early: self.ask_early == Switch::On,
                ..Rules::default()
            },
            hooks: Some(self.hooks.clone()).filter(|folder| !folder.as_os_str().is_empty()),
            estimates: self.working_set == Switch::On,
            squeezes: self.soft_squeeze == Switch::On,
            schedule: schedule?,
            exit_when_alone: self.exit_when_alone.map(Span::from_secs),
            control: control?,
            ready_limit: READY_LIMIT,
        })
    }

    /// The files of TLS: all of them, or none.
    fn tls(&self) -> Result<Option<TlsFiles>, String> {
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (None, None, None) => Ok(None),
            _ if cfg!(not(feature = "tls")) => Err("this build has no TLS".to_owned()),
            (Some(cert), Some(key), Some(client_ca)) => Ok(Some(TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
            })),
            _ => Err("all three are needed, or none".to_owned()),
        }
    }

    fn file_cache(&self, problems: &mut Problems) -> Option<FileCache> {
        let setting = setting_name(&self.file_cache_setting);
        let setting = problems.take("--file-cache-setting", setting);
        let max = &self.file_cache_max_setting;
        let max =
            (!max.is_empty()).then(|| problems.take("--file-cache-max-setting", setting_name(max)));
        let sizing = self.sizing(problems);
        let mode = match self.file_cache {
            Manage::Auto => CacheMode::Auto,
            Manage::On => CacheMode::On,
            Manage::Off => return None,
        };
        let Some(connection) = self.pgconnstr.clone() else {
            if mode == CacheMode::On {
                problems.0.push("--file-cache=on needs --pgconnstr".into());
            }
            return None;
        };
        problems.take("--pgconnstr", check_connection(&connection))?;
        Some(FileCache {
            mode,
            connection: Secret::new(connection),
            setting: setting?,
            max_setting: max.flatten(),
            sizing: sizing?,
        })
    }

    fn sizing(&self, problems: &mut Problems) -> Option<Sizing> {
        let fraction = |text: &str| {
            parse_ppm(text).ok_or_else(|| format!("{text:?} is no fraction such as 0.75"))
        };
        let reserve = self.file_cache_reserve_mib.parse::<u32>();
        let reserve =
            reserve.map_err(|error| format!("{:?}: {error}", self.file_cache_reserve_mib));
        let fraction_ppm =
            problems.take("--file-cache-fraction", fraction(&self.file_cache_fraction));
        let spread_ppm = problems.take("--file-cache-spread", fraction(&self.file_cache_spread));
        let reserve = problems.take("--file-cache-reserve-mib", reserve);
        let sizing = Sizing {
            fraction_ppm: fraction_ppm?,
            reserve: Bytes::mib(u64::from(reserve?)),
            spread_ppm: spread_ppm?,
        };
        problems.take(
            "file cache",
            sizing.check().map_err(|error| error.to_string()),
        )
    }
}

impl Problems {
    fn take<T>(&mut self, option: &str, value: Result<T, String>) -> Option<T> {
        value
            .map_err(|problem| self.0.push(format!("{option}: {problem}")))
            .ok()
    }
}

fn parse_addr(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no address and port such as 0.0.0.0:10369"))
}

/// A path that must not depend on the working directory.
fn file_path(path: Option<&PathBuf>, example: &str) -> Result<Option<PathBuf>, String> {
    match path {
        Some(path) if !path.is_absolute() || path.file_name().is_none() => Err(format!(
            "{} is no absolute path of a file such as {example}",
            path.display()
        )),
        path => Ok(path.cloned()),
    }
}

fn setting_name(text: &str) -> Result<SettingName, String> {
    SettingName::parse(text).ok_or_else(|| format!("{text:?} is no name of a database setting"))
}

#[cfg(feature = "postgres")]
fn check_connection(text: &str) -> Result<(), String> {
    // The parser's own message may quote the text, which may hold a password.
    text.parse::<tokio_postgres::Config>()
        .map(drop)
        .map_err(|_| "is no PostgreSQL connection string".to_owned())
}

#[cfg(not(feature = "postgres"))]
fn check_connection(_: &str) -> Result<(), String> {
    Err("this build has no PostgreSQL support".to_owned())
}

/// The folder of a group: a path of its own if absolute, else under the root, and never outside it.
fn group_folder(root: &Path, name: &str) -> Result<PathBuf, String> {
    let path = Path::new(name);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !is_plain {
        return Err(format!(
            "{name:?} is neither a name under the cgroup root nor an absolute path"
        ));
    }
    Ok(root.join(path))
}

/// Each option's value and where it came from.
fn origins(matches: &ArgMatches) -> Value {
    let command = Args::command();
    let options = command.get_arguments().filter_map(|option| {
        let id = option.get_id().as_str();
        if matches!(id, "help" | "version" | "check_config" | "self_test") {
            return None;
        }
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "command line",
            Some(ValueSource::EnvVariable) => "environment",
            Some(_) => "default",
            None => "not given",
        };
        let raw = matches.get_raw(id).into_iter().flatten().next();
        let value = raw.map(|raw| match id {
            "pgconnstr" => "(not shown)".into(),
            _ => raw.to_string_lossy(),
        });
        Some((id.to_owned(), json!({ "value": value, "origin": origin })))
    });
    options.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<Invocation, CliError> {
        parse(std::iter::once(&"vm-monitor").chain(words))
    }

    fn config(words: &[&str]) -> Config {
        parse_words(words).expect("sound").config
    }

    #[test]
    fn n31_defaults_and_both_ports() {
        assert_eq!(config(&[]), Config::default());
        for (words, port) in [
            (&[][..], protocol::monitor::DEFAULT_PORT),
            (
                &["--addr", "0.0.0.0:10301"],
                protocol::monitor::DEPLOYED_PORT,
            ),
        ] {
            let expected = SocketAddr::from(([0, 0, 0, 0], port));
            assert_eq!(config(words).addr, Address::Tcp(expected));
        }
        let words = ["--addr=vsock:10301", "--metrics-addr=0.0.0.0:10301"];
        let (cid, port) = (Address::ANY, 10_301);
        assert_eq!(config(&words).addr, Address::Vsock { cid, port });
        assert!(parse_words(&["--addr=1.2.3.4:5", "--metrics-addr=1.2.3.4:5"]).is_err());
    }

    #[test]
    fn files_of_the_monitors_own_need_absolute_paths() {
        let path = PathBuf::from("/run/vm-monitor/schedule");
        let words = ["--schedule=/run/vm-monitor/schedule"];
        assert_eq!(config(&words).schedule, Some(path));
        assert!(config(&words).setup().asks_schedule && !config(&[]).setup().asks_schedule);
        for option in ["schedule", "control"] {
            for bad in ["schedule", "./schedule", "/", ""] {
                let word = format!("--{option}={bad}");
                assert!(parse_words(&[&word]).is_err(), "{word}");
            }
        }
    }

    /// Requirement: N31. The deployed monitor has each of its three options in both spellings.
    #[test]
    fn short_options_of_the_deployed_monitor_mean_what_its_long_ones_do() {
        let long = ["--addr", "0.0.0.0:10301", "--cgroup", "neon-postgres"];
        let short = ["-a", "0.0.0.0:10301", "-c", "neon-postgres"];
        assert_eq!(config(&short), config(&long));
        assert_eq!(
            config(&["-a0.0.0.0:10301", "-c=neon-postgres"]),
            config(&long)
        );
        #[cfg(feature = "postgres")]
        {
            let database = "host=localhost port=5432 dbname=postgres user=cloud_admin";
            let managed = config(&["-p", database]);
            assert!(managed.file_cache.is_some());
            assert_eq!(managed, config(&["--pgconnstr", database]));
        }
    }

    #[test]
    fn a_group_is_a_name_under_the_root_or_a_path() {
        let folder = |words: &[&str]| config(words).cgroup.expect("given");
        assert_eq!(folder(&["--cgroup", "db"]), Path::new("/sys/fs/cgroup/db"));
        assert_eq!(
            folder(&[
                "--cgroup=system.slice/postgresql.service",
                "--cgroup-root=/cg"
            ]),
            Path::new("/cg/system.slice/postgresql.service")
        );
        assert_eq!(
            folder(&["--cgroup", "/elsewhere/db"]),
            Path::new("/elsewhere/db")
        );
        assert_eq!(config(&["--cgroup", "db"]).watched, Watched::Cgroup);
        assert_eq!(
            config(&["--without-cgroup=nothing"]).watched,
            Watched::Nothing
        );
        for bad in ["", "..", "a/../../b", "./a"] {
            assert!(parse_words(&["--cgroup", bad]).is_err(), "{bad:?}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_needs_all_of_its_files() {
        let words = ["--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"];
        let files = config(&words).tls.expect("all three");
        assert_eq!(files.key, Path::new("k"));
        for missing in 0..words.len() {
            let mut less = words.to_vec();
            less.remove(missing);
            let error = parse_words(&less).expect_err("one is missing").to_string();
            assert!(error.contains("all three"), "{error}");
        }
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let error = parse_words(&[
            "--addr=nowhere",
            "--cgroup=..",
            "--file-cache=on",
            "--file-cache-setting=a;b",
            "--file-cache-fraction=1",
            "--log=all=loud",
        ]);
        let Err(CliError::Config(Problems(problems))) = error else {
            panic!("{error:?}")
        };
        assert_eq!(problems.len(), 6, "{problems:#?}");
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_database_is_managed_unless_switched_off() {
        let words = [
            "--pgconnstr",
            "host=127.0.0.1 password=hunter2 user=postgres",
        ];
        let cache = config(&words).file_cache.expect("managed");
        assert_eq!(cache.mode, CacheMode::Auto);
        assert_eq!(cache.setting.as_str(), "neon.file_cache_size_limit");
        assert_eq!(cache.sizing, Sizing::default());
        assert_eq!(
            config(&[words[0], words[1], "--file-cache=off"]).file_cache,
            None
        );
        let shown = parse_words(&words).expect("sound").origins.to_string();
        assert!(!shown.contains("hunter2"), "{shown}");
        let bad = parse_words(&["--pgconnstr", "port=hunter2"]).expect_err("no port");
        assert!(!bad.to_string().contains("hunter2"), "{bad}");
    }

    #[test]
    fn origins_are_told() {
        let origins = parse_words(&["--addr", "127.0.0.1:0"])
            .expect("sound")
            .origins;
        assert_eq!(
            origins["addr"],
            json!({"value": "127.0.0.1:0", "origin": "command line"})
        );
        assert_eq!(
            origins["metrics_addr"],
            json!({"value": "0.0.0.0:9100", "origin": "default"})
        );
        assert_eq!(
            origins["cgroup"],
            json!({"value": null, "origin": "not given"})
        );
    }

    #[test]
    fn the_command_is_consistent() {
        Args::command().debug_assert();
    }

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn n38_any_command_line_is_a_configuration_or_an_error(
            words in prop::collection::vec(
                "(--[a-z-]{0,20}(=.{0,20})?|--(cgroup|addr|tls-cert|tls-key|pgconnstr|file-cache|hooks|log|working-set)=.{0,20}|.{0,10})",
                0..6,
            ),
        ) {
            let arguments = std::iter::once("vm-monitor".to_owned()).chain(words);
            match parse(arguments) {
                Ok(invocation) => drop(invocation.config.setup()),
                Err(CliError::Usage(error)) => drop(error.to_string()),
                Err(CliError::Config(problems)) => prop_assert!(!problems.0.is_empty()),
            }
        }
    }
}
