//! The database's side of the file cache: one connection, a few statements.
//!
//! The limit is set with `ALTER SYSTEM`, so it outlives a restart of the database, and takes effect
//! with a reload. The names of the settings come from the configuration; the deployed ones belong
//! to an extension, and a stock PostgreSQL can have one of its own managed (say
//! `effective_cache_size`).

use std::time::Duration;

use protocol::units::Bytes;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, Row};

use super::config::{FileCache, Secret, SettingName};
use super::logging::chain;
use crate::core::cache::{CacheChange, CacheFailure};

/// How long one attempt may take altogether. The agent waits 5 s for its answer.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);

/// What the database says of one setting: its unit, its least value, its present size.
const DESCRIBE: &str = "SELECT coalesce(unit, ''), coalesce(min_val, ''), pg_size_bytes(current_setting(name)) \
                        FROM pg_settings WHERE name = $1";
const RELOAD: &str = "SELECT pg_reload_conf()";

/// The file cache of one database.
#[derive(Debug)]
pub struct Database {
    connection: Secret,
    setting: SettingName,
    max_setting: Option<SettingName>,
    client: Option<Client>,
}

/// A setting as the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    unit: String,
    least: String,
    size: Bytes,
}

impl Database {
    /// A database not connected to yet.
    #[must_use]
    pub fn new(config: &FileCache) -> Self {
        Self {
            connection: config.connection.clone(),
            setting: config.setting.clone(),
            max_setting: config.max_setting.clone(),
            client: None,
        }
    }

    /// Sets the limit to `size`, or to the database's own maximum if that is less.
    ///
    /// # Errors
    /// [`CacheFailure`]. After a lost connection the limit may or may not have been set.
    pub async fn set(&mut self, size: Bytes) -> Result<CacheChange, CacheFailure> {
        match timeout(ATTEMPT_LIMIT, self.attempt(size)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // Whatever the connection is waiting for, its next answer would be to this
                // question.
                self.client = None;
                let seconds = ATTEMPT_LIMIT.as_secs();
                let detail = format!("no answer within {seconds} s");
                Err(CacheFailure::Unreachable { detail })
            }
        }
    }

    async fn attempt(&mut self, size: Bytes) -> Result<CacheChange, CacheFailure> {
        let name = self.setting.clone();
        let Some(setting) = self.describe(&name).await? else {
            let setting = name.as_str().to_owned();
            return Err(CacheFailure::NoSuchSetting { setting });
        };
        let bound = match self.max_setting.clone() {
            Some(name) => self.describe(&name).await?.map(|max| max.size),
            None => None,
        };
        let now = bound.map_or(size, |bound| Bytes(bound.0.min(size.0) >> 20 << 20));
        self.execute(&alter(&name, &setting, now)).await?;
        self.execute(RELOAD).await?;
        Ok(CacheChange {
            was: Some(setting.size),
            now,
        })
    }

    async fn describe(&mut self, name: &SettingName) -> Result<Option<Setting>, CacheFailure> {
        let mut again = true;
        loop {
            let client = self.connected().await?;
            let outcome = client.query_opt(DESCRIBE, &[&name.as_str()]).await;
            match outcome {
                Ok(row) => return row.map(|row| setting_of(&row)).transpose(),
                Err(error) => self.after(&error, &mut again)?,
            }
        }
    }

    async fn execute(&mut self, statement: &str) -> Result<(), CacheFailure> {
        let mut again = true;
        loop {
            let client = self.connected().await?;
            match client.batch_execute(statement).await {
                Ok(()) => return Ok(()),
                Err(error) => self.after(&error, &mut again)?,
            }
        }
    }

    /// A lost connection is made anew once per statement; all else is final.
    fn after(
        &mut self,
        error: &tokio_postgres::Error,
        again: &mut bool,
    ) -> Result<(), CacheFailure> {
        let detail = chain(error);
        // A server that shuts down says so in an error of its own before it hangs up (class 57P).
        let is_going = error
            .code()
            .is_some_and(|code| code.code().starts_with("57P"));
        let is_lost = is_going || self.client.as_ref().is_none_or(Client::is_closed);
        if !is_lost {
            return Err(CacheFailure::Refused { detail });
        }
        self.client = None;
        if std::mem::take(again) {
            Ok(())
        } else {
            Err(CacheFailure::Unreachable { detail })
        }
    }

    async fn connected(&mut self) -> Result<&Client, CacheFailure> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let connected = tokio_postgres::connect(self.connection.reveal(), NoTls).await;
            let (client, connection) = connected.map_err(|error| {
                let detail = chain(&error);
                // A server that answers and turns us away is not one that is away, except while it
                // starts or stops.
                match error.code() {
                    Some(code) if !code.code().starts_with("57P") => {
                        CacheFailure::Refused { detail }
                    }
                    _ => CacheFailure::Unreachable { detail },
                }
            })?;
            // It ends when the client is dropped or the server hangs up; the client knows.
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = chain(&error), "database connection ended");
                }
            });
            self.client = Some(client);
        }
        let none = || CacheFailure::Unreachable {
            detail: "not connected".into(),
        };
        self.client.as_ref().ok_or_else(none)
    }
}

fn setting_of(row: &Row) -> Result<Setting, CacheFailure> {
    let refused = |error: tokio_postgres::Error| CacheFailure::Refused {
        detail: chain(&error),
    };
    let size: i64 = row.try_get(2).map_err(refused)?;
    Ok(Setting {
        unit: row.try_get(0).map_err(refused)?,
        least: row.try_get(1).map_err(refused)?,
        // -1 and the like mean "off" or "by itself".
        size: Bytes(u64::try_from(size).unwrap_or(0)),
    })
}

/// The statement that sets the limit. A setting counted in MB gets a bare number, as the deployed
/// monitor writes it.
fn alter(name: &SettingName, setting: &Setting, size: Bytes) -> String {
    let (name, mib) = (name.as_str(), size.0 >> 20);
    let least = setting.least.parse::<u64>().unwrap_or(0);
    if mib == 0 && least > 0 {
        // Such a setting cannot be zero; its least value is the nearest thing, in its own unit.
        return format!("ALTER SYSTEM SET {name} = {least}");
    }
    match setting.unit.as_str() {
        "MB" => format!("ALTER SYSTEM SET {name} = {mib}"),
        _ => format!("ALTER SYSTEM SET {name} = '{mib}MB'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(unit: &str, least: &str) -> Setting {
        Setting {
            unit: unit.into(),
            least: least.into(),
            size: Bytes(0),
        }
    }

    #[test]
    fn the_deployed_setting_gets_bare_mebibytes() {
        let name = SettingName::parse("neon.file_cache_size_limit").expect("a name");
        let text = alter(&name, &setting("MB", "0"), Bytes::mib(698));
        assert_eq!(text, "ALTER SYSTEM SET neon.file_cache_size_limit = 698");
        let text = alter(&name, &setting("MB", "0"), Bytes(0));
        assert_eq!(text, "ALTER SYSTEM SET neon.file_cache_size_limit = 0");
    }

    #[test]
    fn others_get_a_unit_and_never_less_than_their_least() {
        let name = SettingName::parse("effective_cache_size").expect("a name");
        let text = alter(&name, &setting("8kB", "1"), Bytes::mib(698));
        assert_eq!(text, "ALTER SYSTEM SET effective_cache_size = '698MB'");
        let text = alter(&name, &setting("8kB", "1"), Bytes(0));
        assert_eq!(text, "ALTER SYSTEM SET effective_cache_size = 1");
    }
}
