use tokio_util::sync::CancellationToken;

use super::*;
use crate::published::Published;

fn heard(id: &str, address: u8, generation: u64) -> Heard {
    Heard {
        id: id.into(),
        generation,
        address: SocketAddr::from(([10, 0, 0, address], 7)),
        published: Published::default(),
    }
}

fn select(heard: Vec<Heard>) -> (Vec<(String, u64)>, Option<String>) {
    let listen = SocketAddr::from(([10, 0, 0, 100], 7));
    let (members, conflict) = select_members(heard, &"me".into(), listen, 50);
    let members = members.into_values();
    (
        members
            .map(|machine| (machine.id.to_string(), machine.generation))
            .collect(),
        conflict,
    )
}

/// Requirement: V23
#[test]
fn v23_of_two_machines_with_one_name_the_older_counts() {
    let (members, conflict) = select(vec![heard("a", 1, 9), heard("a", 2, 3), heard("b", 3, 1)]);
    assert_eq!(members, [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    assert_eq!(conflict, None);
    let (_, conflict) = select(vec![heard("me", 1, 49)]);
    assert!(conflict.unwrap().contains("10.0.0.1:7 has the same name"));
    assert_eq!(select(vec![heard("me", 1, 51)]), (Vec::new(), None));
}

/// Requirement: V23
#[test]
fn v23_restarted_machine_counts_by_its_newer_run() {
    let (members, conflict) = select(vec![
        heard("a", 1, 3),
        heard("a", 1, 9),
        heard("me", 100, 4),
    ]);
    assert_eq!(members, [("a".to_owned(), 9)]);
    assert_eq!(conflict, None);
}

/// Requirement: V23
#[test]
fn v23_seventeenth_machine_does_not_count_itself() {
    let older = |count: u8| {
        (0..count)
            .map(|n| heard(&format!("m{n}"), n, u64::from(n)))
            .collect()
    };
    assert_eq!(select(older(15)).1, None);
    assert!(select(older(16)).1.unwrap().contains("use Kubernetes"));
}

/// Machine without sets.
struct Still;

impl Machine for Still {
    fn inventory(&self) -> BoxFuture<'_, Result<Inventory, String>> {
        Box::pin(async { Ok(Inventory::default()) })
    }

    fn scale(&self, _: Counts) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn apply_policy(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>> {
        let good = body.as_ref() == b"good";
        Box::pin(async move {
            if good {
                Ok(())
            } else {
                Err("it is bad".to_owned())
            }
        })
    }
}

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn config(id: &str, secret: u8, join: Option<SocketAddr>, dir: &tempfile::TempDir) -> Config {
    Config {
        id: id.into(),
        priority: 0,
        listen: free_address(),
        keys: Keys::from_secrets(&[[secret; 32]]).unwrap(),
        join,
        settings: Settings::default(),
        state_file: dir.path().join(id),
        clock: Clock::new(),
        release: "1".to_owned(),
        machine: Arc::new(Still),
    }
}

/// A mesh that runs until the end of the test, and its address.
async fn started(config: Config, cancel: &CancellationToken) -> (Mesh, SocketAddr) {
    let address = config.listen;
    let (mesh, run) = Mesh::start(config).await.unwrap();
    tokio::spawn(run(cancel.clone()));
    (mesh, address)
}

async fn wait_for(mesh: &Mesh, what: impl Fn(&MeshStatus) -> bool) {
    for _ in 0..300 {
        if what(&mesh.status()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{:#?}", mesh.status());
}

/// Requirement: V18, V23
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v23_second_machine_joins_by_one_request_and_one_of_them_leads() {
    let dir = tempfile::tempdir().unwrap();
    let cancel = CancellationToken::new();
    let (first, address) = started(config("a", 1, None, &dir), &cancel).await;
    let (second, _) = started(config("b", 1, Some(address), &dir), &cancel).await;
    for mesh in [&first, &second] {
        wait_for(mesh, |status| {
            let leaders = status.peers.iter().filter(|peer| peer.leads).count();
            let known = status
                .peers
                .iter()
                .filter(|peer| peer.alive && (peer.this || peer.rtt_ms.is_some()));
            leaders == 1 && known.count() == 2
        })
        .await;
    }
    // Both may lead until each has heard the other's claim.
    let leader = |status: &MeshStatus| {
        let leads = status.peers.iter().find(|peer| peer.leads);
        leads.map(|peer| peer.id.clone())
    };
    wait_for(&first, |status| leader(status) == leader(&second.status())).await;
    second.want("web", 3).unwrap();
    wait_for(&first, |status| status.wanted.get("web") == Some(&3)).await;
    let applied = first.apply_policy(Bytes::from_static(b"good")).await;
    assert_eq!(applied, [("b".into(), Ok(()))].into());
    let applied = first.apply_policy(Bytes::from_static(b"bad")).await;
    assert!(
        applied[&MachineId::from("b")]
            .as_ref()
            .unwrap_err()
            .contains("it is bad")
    );
    cancel.cancel();
}

/// Requirement: V23
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v23_machine_with_another_key_or_a_name_that_is_taken_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cancel = CancellationToken::new();
    let (first, address) = started(config("a", 1, None, &dir), &cancel).await;
    let other_key = Mesh::start(config("b", 2, Some(address), &dir)).await;
    assert!(matches!(other_key.err(), Some(StartError::Key(at)) if at == address));
    let same_name = Mesh::start(config("a", 1, Some(address), &dir)).await;
    let text = same_name.err().unwrap().to_string();
    assert!(text.contains("--node-name"), "{text}");
    assert!(first.status().dropped >= 1);
    assert_eq!(first.status().peers.len(), 1);
    cancel.cancel();
}
