//! A headless Chromium, driven by its DevTools protocol.
//!
//! Messages are JSON, each ended by a zero byte, over two pipes: the browser reads descriptor 3 and
//! writes descriptor 4. It opens no port, and its resolver knows 127.0.0.1 alone.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use test_records::{Missing, skip};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Longest time for a response or a page.
const PATIENCE: Duration = Duration::from_secs(120);
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
    "about:blank",
];
/// Gives the program descriptors 3 and 4 in place of standard input and output.
const PIPES: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >&2"#;

/// A key and its name.
#[derive(Debug, Clone, Copy)]
pub enum Key {
    /// Moves the focus on.
    Tab,
    /// Follows a link, sends a form.
    Enter,
}

/// A browser with one page.
pub struct Browser {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: String,
    calls: u64,
    loads: u64,
    /// Errors and warnings of the console since the last look.
    complaints: Vec<String>,
    /// URLs of all requests since the last look.
    requests: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser with an empty profile. `None`, recorded as skipped, if there is none.
    ///
    /// # Errors
    ///
    /// If it does not start.
    ///
    /// # Panics
    ///
    /// If the test may not be skipped.
    pub async fn or_skip(test: &str) -> Result<Option<Self>> {
        let found = Command::new("chromium").arg("--version").output().await;
        if found.is_err() {
            let reason = "chromium is missing: run `cargo xtask setup`";
            skip(test, Missing::Tool, reason);
            return Ok(None);
        }
        Self::start().await.map(Some)
    }

    async fn start() -> Result<Self> {
        let profile = tempfile::Builder::new().prefix("bellows-test-").tempdir()?;
        let log = std::fs::File::create(profile.path().join("log"))?;
        let mut child = Command::new("sh")
            .args(["-c", PIPES, "sh", "chromium"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(FLAGS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("the browser has no input")?;
        let output = child.stdout.take().context("the browser has no output")?;
        let mut browser = Self {
            _child: child,
            input,
            output: BufReader::new(output),
            session: String::new(),
            calls: 0,
            loads: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        browser.attach().await?;
        Ok(browser)
    }

    async fn attach(&mut self) -> Result<()> {
        let made = json!({"url": "about:blank"});
        let made = self.call("Target.createTarget", made).await?;
        let target = json!({"targetId": made["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", target).await?;
        let session = attached["sessionId"].as_str();
        self.session = session.context("no session")?.to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({})).await?;
        }
        // A page of a headless browser has no focus of its own.
        let focused = json!({"enabled": true});
        self.call("Emulation.setFocusEmulationEnabled", focused)
            .await?;
        Ok(())
    }

    /// Calls a method of the protocol.
    ///
    /// # Errors
    ///
    /// The browser's error, or no response in time.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.input.write_all(&bytes).await?;
        self.input.flush().await?;
        loop {
            let mut message = self.receive(method).await?;
            if message["id"] != id {
                continue;
            }
            if message["error"].is_object() {
                bail!("{method}: {}", message["error"]);
            }
            return Ok(message["result"].take());
        }
    }

    /// The next message. Events are noted.
    async fn receive(&mut self, what: &str) -> Result<Value> {
        let mut bytes = Vec::new();
        let read = self.output.read_until(0, &mut bytes);
        let count = tokio::time::timeout(PATIENCE, read).await;
        count.with_context(|| format!("{what}: the browser does not answer"))??;
        if bytes.pop() != Some(0) {
            bail!("{what}: the browser has ended");
        }
        let message: Value = serde_json::from_slice(&bytes)?;
        self.note(&message);
        Ok(message)
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => self.loads += 1,
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded" => {
                self.complaints.push(params.to_string());
            }
            _ => {}
        }
    }

    /// Opens a page and waits until it is loaded.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub async fn open(&mut self, url: &str) -> Result<()> {
        let before = self.loads;
        let opened = self.call("Page.navigate", json!({"url": url})).await?;
        if let Some(error) = opened["errorText"].as_str() {
            bail!("{url}: {error}");
        }
        self.loaded_after(before).await
    }

    /// Presses a key that leads to another page, and waits until that is loaded.
    ///
    /// # Errors
    ///
    /// If no page is loaded.
    pub async fn press_and_load(&mut self, key: Key) -> Result<()> {
        let before = self.loads;
        self.press(key).await?;
        self.loaded_after(before).await
    }

    async fn loaded_after(&mut self, before: u64) -> Result<()> {
        while self.loads <= before {
            self.receive("a page").await?;
        }
        Ok(())
    }

    /// Presses and releases a key.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn press(&mut self, key: Key) -> Result<()> {
        let (name, code, text) = match key {
            Key::Tab => ("Tab", 9, ""),
            Key::Enter => ("Enter", 13, "\r"),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({"type": kind, "key": name, "code": name,
                "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Types text into what has the focus.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn type_text(&mut self, text: &str) -> Result<()> {
        for letter in text.chars() {
            let event = json!({"type": "char", "text": letter.to_string()});
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Value of a JavaScript expression in the page.
    ///
    /// # Errors
    ///
    /// If it throws.
    pub async fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true});
        let mut done = self.call("Runtime.evaluate", params).await?;
        if done["exceptionDetails"].is_object() {
            bail!("{}", done["exceptionDetails"]);
        }
        Ok(done["result"]["value"].take())
    }

    /// Sets the width of the window in pixels, and the system's preference for dark colours.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn look(&mut self, width: u32, is_dark: bool) -> Result<()> {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size)
            .await?;
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        let media = json!({"features": [feature]});
        self.call("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// The page as a PNG of a height in pixels.
    ///
    /// # Errors
    ///
    /// If the browser does not draw it.
    pub async fn picture(&mut self, width: u32, height: u32) -> Result<Vec<u8>> {
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let params = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
        let drawn = self.call("Page.captureScreenshot", params).await?;
        let data = drawn["data"].as_str().context("no picture")?;
        Ok(BASE64_STANDARD.decode(data)?)
    }

    /// What the console said since the last look.
    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// URLs of all requests since the last look.
    pub fn requests(&mut self) -> Vec<String> {
        std::mem::take(&mut self.requests)
    }
}
