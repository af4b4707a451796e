//! `/etc/bellows/updater.toml`.

use std::net::SocketAddr;
use std::path::Path;

use protocol::fleet::check_channel_name;
use reqwest::Url;
use serde::{Deserialize, Deserializer};

use super::{Error, files};

/// Most bytes of the file.
const MAX_BYTES: usize = 64 << 10;

/// Settings of the updater. Without the file nothing is upgraded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether upgrades are made.
    #[serde(default)]
    pub enabled: bool,
    /// Where channels are served: `https:`, or `file:` for a folder of this machine.
    #[serde(deserialize_with = "url")]
    pub base_url: Url,
    /// Name of the channel.
    pub channel: String,
    /// Address of the monitor's page of metrics. Without it the page is no part of its health.
    pub page: Option<SocketAddr>,
}

impl Settings {
    /// Reads the settings. `None` without the file, or if upgrades are off.
    ///
    /// # Errors
    /// The rule that the file breaks.
    pub fn enabled(path: &Path) -> Result<Option<Self>, Error> {
        let Some(content) = files::read(path, MAX_BYTES)? else {
            return Ok(None);
        };
        let settings = Self::parse(&content);
        let settings =
            settings.map_err(|reason| Error::Input(format!("{}: {reason}", path.display())))?;
        Ok(Some(settings).filter(|settings| settings.enabled))
    }

    /// Checks the content of the file.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let text = str::from_utf8(content).map_err(|_| "must be text in UTF-8".to_owned())?;
        let settings: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if !matches!(settings.base_url.scheme(), "https" | "file") {
            return Err("base_url must begin with https: or file:".to_owned());
        }
        check_channel_name(&settings.channel).map_err(|rule| format!("channel {rule}"))?;
        Ok(settings)
    }
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    let text = String::deserialize(deserializer)?;
    Url::parse(&text).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_their_fault() {
        let parse = |text: &str| Settings::parse(text.as_bytes());
        let sound = "enabled = true\nbase_url = \"https://a.example/\"\nchannel = \"stable\"\n";
        assert!(parse(sound).expect("settings").enabled);
        let off = sound.replace("enabled = true\n", "");
        assert!(!parse(&off).expect("settings").enabled, "off by default");
        for (bad, word) in [
            (sound.replace("https:", "http:"), "base_url"),
            (sound.replace("stable", "../x"), "channel"),
            (sound.replace("channel", "chanel"), "chanel"),
            (sound.replace("true", "\"yes\""), "enabled"),
            (format!("{sound}page = \"here\"\n"), "page"),
            (String::new(), "base_url"),
        ] {
            let error = parse(&bad).expect_err("a fault");
            assert!(error.contains(word), "{error}");
        }
        assert!(Settings::parse(b"\xff").is_err());
    }

    /// Requirement: R03
    #[test]
    fn machine_without_settings_or_with_upgrades_off_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("updater.toml");
        assert_eq!(Settings::enabled(&path).expect("read"), None);
        let off = "base_url = \"file:/srv\"\nchannel = \"stable\"\n";
        std::fs::write(&path, off).expect("written");
        assert_eq!(Settings::enabled(&path).expect("read"), None);
        std::fs::write(&path, "enabled = 1").expect("written");
        assert!(Settings::enabled(&path).is_err());
    }
}
