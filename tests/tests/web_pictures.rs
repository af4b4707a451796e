//! The pages of `bellows web` in a real browser: their width, their colours, the keyboard, and what
//! they load. With `BELLOWS_PICTURES=write` it renews the pictures in `docs/web/`.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "web_pictures/past.rs"]
mod past;

use std::time::{Duration, Instant};

use bellows_tests::browser::{Browser, Key};
use bellows_tests::checkout;
use bellows_tests::site::Site;
use bellows_tests::web::{PAGE_BYTES, Web, add_set, site, site_of, status};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Texts of less contrast than WCAG 2.2 asks for (1.4.3).
const CONTRAST: &str = include_str!("web_pictures/contrast.js");
/// Elements that the Tab key reaches, in the order of the page.
const STOPS: &str = include_str!("web_pictures/stops.js");
/// Which stop has the focus, and whether a person sees that.
const FOCUS: &str = include_str!("web_pictures/focus.js");
/// Stops of a page before which it can be told not to load itself again.
const EARLY: u64 = 8;
/// Most stops of a page.
const MOST_STOPS: usize = 200;
const VMS: usize = 1_000;

/// A browser that has opened the link.
struct Seen {
    browser: Browser,
    origin: String,
    /// Keeps the server.
    _web: Web,
}

impl Seen {
    /// `None` if there is no browser.
    async fn start(test: &str, site: &Site) -> Option<Self> {
        let mut browser = Browser::or_skip(test).await.unwrap()?;
        let web = Web::start(site).await.unwrap();
        let origin = format!("http://{}", web.address);
        let link = format!("{origin}{}", web.link);
        browser.open(&link).await.unwrap();
        Some(Self {
            browser,
            origin,
            _web: web,
        })
    }

    async fn open(&mut self, path: &str) {
        let url = format!("{}{path}", self.origin);
        self.browser.open(&url).await.unwrap();
    }

    async fn value(&mut self, expression: &str) -> Value {
        self.browser.value(expression).await.unwrap()
    }

    /// Presses Tab until a thing with this name has the focus. Returns the number of its stop.
    async fn tab_to(&mut self, name: &str) -> u64 {
        let mut passed = Vec::new();
        for _ in 0..MOST_STOPS {
            self.browser.press(Key::Tab).await.unwrap();
            self.value(STOPS).await;
            let focus = self.value(FOCUS).await;
            if focus["name"] == name {
                return focus["stop"].as_u64().unwrap();
            }
            passed.push(focus["name"].to_string());
        }
        panic!("no {name:?}; there are {passed:?}")
    }

    /// Follows a link, or sends a form, by keyboard alone.
    async fn enter(&mut self, name: &str) {
        self.tab_to(name).await;
        self.browser.press_and_load(Key::Enter).await.unwrap();
    }

    /// Stops that pages load themselves again, as a person without a mouse does.
    async fn stop_refresh(&mut self) {
        self.open("/").await;
        while !self.text().await.contains("Does not load again") {
            let stop = self.tab_to("Stop that").await;
            assert!(stop < EARLY, "it is stop {stop} of the page");
            // The page may also load itself again.
            self.browser.press_and_load(Key::Enter).await.unwrap();
        }
    }

    async fn text(&mut self) -> String {
        let text = self.value("document.body.innerText").await;
        text.as_str().unwrap().to_owned()
    }
}

/// A site with a VM, a policy and a set.
async fn site_with_set() -> Site {
    let site = site().await.unwrap();
    let web = Web::opened(&site).await.unwrap();
    add_set(&site, &web).await.unwrap();
    site
}

/// Paths of pages of each kind.
fn paths(site: &Site) -> Vec<String> {
    let node = site.ready["node"].as_str().unwrap();
    let fixed = [
        "/",
        "/vms",
        "/vms?search=1",
        "/vms/default/pg",
        "/vms/default/pg?window=24h",
        "/vms/default/pg/bounds",
        "/vms/default/pg/mode",
        "/nodes",
        "/policies",
        "/policies/db",
        "/policies/db/promote",
        "/policies/db/what-if",
        "/sets",
        "/sets/default/web",
        "/sets/default/web/scale",
        "/sets/default/web/scale?count=9",
        "/actions",
    ];
    let mut paths: Vec<String> = fixed.map(str::to_owned).into();
    paths.push(format!("/nodes/{node}"));
    paths.push(format!("/nodes/{node}/drain"));
    paths
}

/// Waits until the pages show the VM.
async fn shown(seen: &mut Seen) {
    let begun = Instant::now();
    loop {
        seen.open("/vms").await;
        if seen.text().await.contains("default/pg") {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the VM is not on the page");
    }
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_fit_their_window_and_can_be_read() {
    let site = site_with_set().await;
    past::write(&site);
    let test = "pages_fit_their_window_and_can_be_read";
    let Some(mut seen) = Seen::start(test, &site).await else {
        return;
    };
    shown(&mut seen).await;
    seen.stop_refresh().await;
    seen.browser.requests();
    for (width, is_dark) in [(400, false), (400, true), (1600, false), (1600, true)] {
        seen.browser.look(width, is_dark).await.unwrap();
        for path in paths(&site) {
            seen.open(&path).await;
            let place = format!("{path} at {width} pixels, dark: {is_dark}");
            let wide = seen.value("document.documentElement.scrollWidth").await;
            assert!(wide.as_u64().unwrap() <= width.into(), "{place}: {wide}");
            let read = seen.value(CONTRAST).await;
            assert!(read["texts"].as_u64().unwrap() > 10, "{place}: {read}");
            assert_eq!(read["faint"], json!([]), "{place}");
            let back = read["back"].as_f64().unwrap();
            assert_eq!(back < 0.2, is_dark, "{place}: background {back}");
            let said = seen.browser.complaints();
            assert!(said.is_empty(), "{place}: {said:?}");
        }
    }
    let own = format!("{}/", seen.origin);
    let foreign = seen.browser.requests();
    let foreign: Vec<&String> = foreign
        .iter()
        .filter(|url| !url.starts_with(&own))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    if std::env::var("BELLOWS_PICTURES").is_ok_and(|value| value == "write") {
        write_pictures(&mut seen).await;
    }
}

async fn write_pictures(seen: &mut Seen) {
    let folder = checkout().join("docs/web");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, path) in [
        ("overview", "/"),
        ("vm", "/vms/default/pg?window=1h"),
        ("set", "/sets/default/web"),
    ] {
        for (look, width, is_dark) in [("wide-light", 1600, false), ("narrow-dark", 400, true)] {
            seen.browser.look(width, is_dark).await.unwrap();
            seen.open(path).await;
            let picture = seen.browser.picture(width, 900).await.unwrap();
            std::fs::write(folder.join(format!("{name}-{look}.png")), picture).unwrap();
        }
    }
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_work_by_keyboard_alone() {
    let site = site_with_set().await;
    let Some(mut seen) = Seen::start("pages_work_by_keyboard_alone", &site).await else {
        return;
    };
    shown(&mut seen).await;
    seen.stop_refresh().await;
    for width in [400, 1600] {
        seen.browser.look(width, false).await.unwrap();
        for path in paths(&site) {
            seen.open(&path).await;
            let stops = seen.value(STOPS).await;
            let stops = stops.as_u64().unwrap();
            for expected in 0..stops {
                seen.browser.press(Key::Tab).await.unwrap();
                let focus = seen.value(FOCUS).await;
                let place = format!("{path} at {width} pixels, stop {expected}: {focus}");
                assert_eq!(focus["stop"], json!(expected), "{place}");
                assert_eq!(focus["visible"], json!(true), "{place}");
            }
        }
    }
    seen.open("/").await;
    seen.enter("Policies").await;
    seen.enter("db").await;
    seen.enter("Pause").await;
    seen.tab_to("Reason, for the history (needed)").await;
    seen.browser.type_text("by keyboard").await.unwrap();
    seen.enter("Pause the policy").await;
    let answer = seen.text().await;
    assert!(answer.contains("policy db is paused"), "{answer}");
    seen.enter("Go on").await;
    let page = seen.text().await;
    assert!(page.contains("End the pause"), "{page}");
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_of_a_thousand_vms_is_small() {
    let (_site, web) = site_of(VMS).await.unwrap();
    for path in ["/", "/vms", "/vms?page=10", "/vms?q=vm-0042"] {
        let page = web.get(path).await.unwrap();
        assert_eq!(status(&page), 200, "{path}");
        assert!(page.len() <= PAGE_BYTES, "{path}: {} bytes", page.len());
    }
}
