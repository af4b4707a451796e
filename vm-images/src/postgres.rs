//! The database of a guest image. The guest's own programs create it at build time.
//!
//! Everything runs in the server's single-user mode: one process, without background writer,
//! timers, or incomplete sampling. The same packages therefore write the same pages. The cluster's
//! random identity and its times are overwritten afterwards, see [`control`].

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use crate::error::{BuildError, IoContext};
use crate::progress::{Reporter, Step};
use crate::recipe::{PostgresRecipe, RoleRecipe, UserRecipe};
use crate::sandbox::{Identity, Sandbox};
use crate::tool::Tool;

pub(crate) mod control;

/// Directory of the cluster in the guest.
pub(crate) const DATA: &str = "srv/pg/data";

/// User of the server. A recipe with a database must define it.
pub(crate) const USER: &str = "postgres";

/// Rows per unit of pgbench's scale.
const ACCOUNTS_PER_SCALE: u64 = 100_000;

/// ANALYZE samples 300 rows per unit of the statistics target, which is at most 10,000.
const ROWS_PER_TARGET: u64 = 300;
const LARGEST_TARGET: u64 = 10_000;

/// Settings of the build only. The result must not depend on time, nor keep them.
const BUILD_SETTINGS: &[&str] = &[
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "autovacuum=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=8GB",
    "exit_on_error=on",
    "log_checkpoints=off",
    "jit=off",
    "max_parallel_maintenance_workers=0",
    "maintenance_work_mem=256MB",
];

/// The unit by which the guest's daemon keeps `size.conf` up to date.
pub(crate) fn size_unit(recipe: &PostgresRecipe) -> String {
    include_str!("../guest/postgres-size.toml").replace("PROGRAMS", &programs(recipe.version))
}

/// Directory of the server's programs in the packages.
pub(crate) fn programs(version: u32) -> String {
    format!("/usr/lib/postgresql/{version}/bin")
}

/// Creates the cluster. Returns the files that differ from build to build.
pub(crate) fn create(
    recipe: &PostgresRecipe,
    users: &[UserRecipe],
    root: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<Vec<String>, BuildError> {
    reporter.begin(Step::Database, "");
    let id = users.iter().find(|u| u.name == USER).map_or(0, |u| u.id);
    let cluster = Cluster {
        root,
        id,
        bin: programs(recipe.version),
    };
    cluster.require("initdb")?;
    cluster.link_programs()?;
    cluster.prepare()?;
    let sandbox = Sandbox::open(root)?;
    cluster.fill(&sandbox, recipe, reporter)?;
    sandbox.close()?;
    cluster.configure(recipe)?;
    control::settle(&root.join(DATA))?;
    cluster.clean()?;
    Ok(unreproducible(recipe.bench_scale))
}

/// Files that differ from build to build. Statistics depend on ANALYZE's sample if a table has more
/// rows than it.
fn unreproducible(scale: u32) -> Vec<String> {
    let accounts = u64::from(scale) * ACCOUNTS_PER_SCALE;
    let is_sampled = accounts > LARGEST_TARGET * ROWS_PER_TARGET;
    let mut files = Vec::new();
    if is_sampled {
        files.push(format!("{DATA}/base: statistics of bench.pgbench_accounts"));
    }
    files
}

struct Cluster<'a> {
    root: &'a Path,
    id: u32,
    bin: String,
}

impl Cluster<'_> {
    fn require(&self, program: &str) -> Result<(), BuildError> {
        let path = format!("{}/{program}", self.bin);
        if self.root.join(path.trim_start_matches('/')).exists() {
            return Ok(());
        }
        Err(BuildError::NotInPackages {
            path,
            why: "to create the database".into(),
        })
    }

    /// Links psql and the others by name. Debian's wrappers need an interpreter that the guest
    /// lacks.
    fn link_programs(&self) -> Result<(), BuildError> {
        let dir = self.root.join(self.bin.trim_start_matches('/'));
        for entry in fs::read_dir(&dir).at("list", &dir)? {
            let name = entry.at("list", &dir)?.file_name();
            let link = self.root.join("usr/bin").join(&name);
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link).at("remove", &link)?;
            }
            let target = format!("{}/{}", self.bin, name.to_string_lossy());
            symlink(target, &link).at("link", &link)?;
        }
        Ok(())
    }

    /// Creates an empty data directory.
    fn prepare(&self) -> Result<(), BuildError> {
        let home = self.root.join("srv/pg");
        fs::create_dir_all(&home).at("create", &home)?;
        chown(&home, Some(self.id), Some(self.id)).at("change the owner of", &home)?;
        Ok(())
    }

    /// Creates the cluster and its content with the programs of the image.
    fn fill(
        &self,
        sandbox: &Sandbox,
        recipe: &PostgresRecipe,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        let data = format!("/{DATA}");
        self.program(sandbox, "initdb", "creating the database cluster")?
            .args(["-D", &data, "--username=postgres", "--no-sync"])
            .args(["--no-instructions", "--encoding=UTF8", "--locale=C.UTF-8"])
            .arg("--auth=trust")
            .run(reporter)?;
        if recipe.bench_scale > 0 {
            let scale = format!("pgbench, scale {}", recipe.bench_scale);
            reporter.begin(Step::Database, &scale);
            self.sql(sandbox, "postgres", "CREATE DATABASE bench", reporter)?;
            self.sql(sandbox, "bench", &bench_sql(recipe.bench_scale), reporter)?;
        }
        if let Some(role) = &recipe.monitor {
            self.sql(sandbox, "postgres", &role_sql(role), reporter)?;
        }
        self.program(sandbox, "pg_resetwal", "starting a fresh log")?
            .args(["-f", "-D", &data])
            .run(reporter)
    }

    fn program(&self, sandbox: &Sandbox, name: &str, step: &str) -> Result<Tool, BuildError> {
        let identity = Identity {
            uid: self.id,
            gid: self.id,
            groups: Vec::new(),
        };
        sandbox.tool(&identity, &format!("{}/{name}", self.bin), step)
    }

    /// Runs SQL in single-user mode. A semicolon and an empty line end each statement.
    fn sql(
        &self,
        sandbox: &Sandbox,
        database: &str,
        sql: &str,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        let mut run = self.program(sandbox, "postgres", "filling the database")?;
        run = run.args(["--single", "-j", "-D", &format!("/{DATA}")]);
        for setting in BUILD_SETTINGS {
            run = run.args(["-c", setting]);
        }
        run.arg(database)
            .run_fed(format!("{sql};\n\n").into_bytes(), reporter)
    }

    fn configure(&self, recipe: &PostgresRecipe) -> Result<(), BuildError> {
        let data = self.root.join(DATA);
        for (name, text) in [
            ("postgresql.conf", configuration(recipe)),
            (
                "pg_hba.conf",
                include_str!("../guest/pg_hba.conf").to_owned(),
            ),
            ("pg_ident.conf", logins(recipe.monitor.as_ref())),
        ] {
            let path = data.join(name);
            fs::write(&path, text).at("write", &path)?;
        }
        Ok(())
    }

    /// Removes what only the build needed, and what the server recreates at its next start.
    fn clean(&self) -> Result<(), BuildError> {
        for name in ["dev", "tmp", &format!("{DATA}/pg_stat")] {
            let dir = self.root.join(name);
            for entry in fs::read_dir(&dir).at("list", &dir)? {
                crate::paths::remove(&entry.at("list", &dir)?.path())?;
            }
        }
        Ok(())
    }
}

fn configuration(recipe: &PostgresRecipe) -> String {
    let mut text =
        String::from("# From the image's recipe; ALTER SYSTEM writes to postgresql.auto.conf.\n");
    // Before the recipe's settings, which have precedence.
    text += "include_if_exists = 'size.conf'\n";
    for (name, value) in &recipe.settings {
        text += &format!("{name} = '{}'\n", value.replace('\'', "''"));
    }
    text
}

/// Users of the guest that may log in through the socket, and their roles.
fn logins(monitor: Option<&RoleRecipe>) -> String {
    let mut text =
        String::from("# MAP  USER  ROLE\nguest root postgres\nguest postgres postgres\n");
    if let Some(RoleRecipe { name, user, .. }) = monitor {
        text += &format!("guest {user} {name}\n");
    }
    text
}

/// SQL of the monitor's role. It may not create tables, and has few connections.
fn role_sql(role: &RoleRecipe) -> String {
    let name = &role.name;
    let mut statements = vec![
        format!("CREATE ROLE {name} LOGIN NOINHERIT CONNECTION LIMIT 4"),
        format!("GRANT EXECUTE ON FUNCTION pg_catalog.pg_reload_conf() TO {name}"),
    ];
    for setting in &role.settings {
        statements.push(format!(
            "GRANT ALTER SYSTEM ON PARAMETER {setting} TO {name}"
        ));
    }
    statements.join(";\n\n")
}

/// SQL of what `pgbench -i` creates, without its random choices. The statistics see every row.
///
/// Source of the schema: the documentation of pgbench ("Initialization Options", "What Is the
/// Transaction").
fn bench_sql(scale: u32) -> String {
    let accounts = u64::from(scale) * ACCOUNTS_PER_SCALE;
    let tellers = u64::from(scale) * 10;
    let mut statements = vec![
        "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22))".into(),
        "CREATE TABLE pgbench_tellers (tid int not null, bid int, tbalance int, filler char(84)) WITH (fillfactor=100)".into(),
        "CREATE TABLE pgbench_accounts (aid int not null, bid int, abalance int, filler char(84)) WITH (fillfactor=100)".into(),
        "CREATE TABLE pgbench_branches (bid int not null, bbalance int, filler char(88)) WITH (fillfactor=100)".into(),
        format!("INSERT INTO pgbench_branches (bid, bbalance) SELECT n, 0 FROM generate_series(1, {scale}) n"),
        format!("INSERT INTO pgbench_tellers (tid, bid, tbalance) SELECT n, (n - 1) / 10 + 1, 0 FROM generate_series(1, {tellers}) n"),
        format!(
            "INSERT INTO pgbench_accounts (aid, bid, abalance, filler) \
             SELECT n, (n - 1) / {ACCOUNTS_PER_SCALE} + 1, 0, '' FROM generate_series(1, {accounts}) n"
        ),
        "ALTER TABLE pgbench_branches ADD PRIMARY KEY (bid)".into(),
        "ALTER TABLE pgbench_tellers ADD PRIMARY KEY (tid)".into(),
        "ALTER TABLE pgbench_accounts ADD PRIMARY KEY (aid)".into(),
    ];
    // The largest target decides how many rows are sampled. The statistics of `filler` stay small
    // with any target.
    let target = accounts
        .div_ceil(ROWS_PER_TARGET)
        .clamp(100, LARGEST_TARGET);
    statements.push(format!(
        "ALTER TABLE pgbench_accounts ALTER filler SET STATISTICS {target}"
    ));
    statements.push("VACUUM FREEZE".into());
    for table in ["branches", "tellers", "accounts", "history"] {
        statements.push(format!("ANALYZE pgbench_{table}"));
    }
    statements.push("ALTER TABLE pgbench_accounts ALTER filler SET STATISTICS -1".into());
    statements.push("CHECKPOINT".into());
    statements.join(";\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn every_account_is_counted_and_sampled() {
        let sql = bench_sql(5);
        assert!(sql.contains("generate_series(1, 500000)"));
        assert!(sql.contains("SET STATISTICS 1667") && sql.contains("SET STATISTICS -1"));
        assert_eq!(500_000u64.div_ceil(ROWS_PER_TARGET), 1667);
        assert!(bench_sql(1).contains("SET STATISTICS 334"));
        assert!(unreproducible(30).is_empty());
        assert_eq!(unreproducible(31).len(), 1);
    }

    /// Requirement: N46
    #[test]
    fn settings_are_quoted() {
        let mut recipe = PostgresRecipe {
            version: 15,
            cgroup: "postgres".into(),
            bench_scale: 0,
            settings: [("a".to_owned(), "it's".to_owned())].into(),
            monitor: None,
        };
        recipe.settings.insert("jit".into(), "off".into());
        let text = configuration(&recipe);
        assert!(text.ends_with("a = 'it''s'\njit = 'off'\n"), "{text}");
        let included = text.find("include_if_exists = 'size.conf'\n");
        assert!(
            included.is_some() && included < text.find("a = "),
            "the recipe has precedence: {text}"
        );
    }

    /// Requirement: N46
    #[test]
    fn the_monitors_role_may_set_what_it_manages_and_nothing_else() {
        let role = RoleRecipe {
            name: "vm_monitor".into(),
            user: "vm-monitor".into(),
            settings: vec!["neon.file_cache_size_limit".into()],
        };
        let sql = role_sql(&role);
        assert_eq!(
            sql.matches("GRANT ").count(),
            2,
            "reload and one setting: {sql}"
        );
        assert!(sql.ends_with("ON PARAMETER neon.file_cache_size_limit TO vm_monitor"));
        assert!(!sql.contains("SUPERUSER") && !sql.contains("pg_monitor"));
        assert!(logins(Some(&role)).ends_with("guest vm-monitor vm_monitor\n"));
        assert!(!logins(None).contains("vm-monitor"));
    }

    /// Requirement: N46
    #[test]
    fn a_missing_server_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster {
            root: dir.path(),
            id: 110,
            bin: programs(15),
        };
        let error = cluster.require("initdb").unwrap_err().to_string();
        assert!(
            error.contains("/usr/lib/postgresql/15/bin/initdb"),
            "{error}"
        );
    }
}
