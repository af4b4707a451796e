//! Files, secrets and settings that a VM's spec gives its guest: rows of NeonVM's suite
//! (docs/compatibility/neonvm.md §5), in one guest.

use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;
use serde_json::{Value, json};

use super::{PATIENCE, said};

const SWAP_BYTES: u64 = 1 << 30;
const PAGE_BYTES: u64 = 4096;
/// Mount point of the disk with quotas.
const DATA: &str = "/var/db/postgres/compute";

/// Adds it to a VM's spec.
pub(crate) fn add(spec: &mut Value) {
    let guest = &mut spec["guest"];
    guest["settings"] =
        json!({"swap": SWAP_BYTES.to_string(), "sysctl": ["vm.overcommit_ratio=61"]});
    guest["args"] = json!(["by", "the VM's \"args\""]);
    guest["env"] = json!([{"name": "SAID", "value": "it's $HOME"}]);
    spec["disks"] = json!([
        {"name": "data", "mountPath": DATA, "emptyDisk": {"size": "2Gi", "discard": true, "enableQuotas": true}},
        {"name": "config", "mountPath": "/etc/config", "configMap": {"name": "config"}},
        {"name": "password", "mountPath": "/etc/password", "secret": {"secretName": "password",
            "items": [{"key": "word", "path": "renamed"}]}},
        {"name": "sync", "mountPath": "/var/sync/example", "watch": true, "secret": {"secretName": "password"}},
        {"name": "scratch", "mountPath": "/scratch", "tmpfs": {"size": "64Mi"}},
    ]);
}

/// Creates the objects after the VM that needs them. Until then it reports what it waits for.
pub(crate) async fn come_late(site: &Site) {
    let config = ["create", "configmap", "config", "--from-literal=key=value"];
    site.kubectl(&config).await.unwrap();
    wait_for("an event about the secret", PATIENCE, || async {
        let events = site.kubectl(&["get", "events", "-o", "json"]).await;
        let events = events.map_err(|error| format!("{error:#}"))?;
        let told = "secret \\\"password\\\" does not exist, create it";
        if events.contains(told) && events.contains("FailedMount") {
            Ok(())
        } else {
            Err(events)
        }
    })
    .await
    .unwrap();
    let literal = ["--from-literal=word=old"];
    let create = ["create", "secret", "generic", "password"];
    site.kubectl(&[&create[..], &literal[..]].concat())
        .await
        .unwrap();
}

pub(crate) async fn check(site: &Site) {
    vm_ssh(site).await;
    vm_neonvmd(site).await;
    files(site).await;
    swap(site).await;
    disk_quota(site).await;
    vm_secret_sync(site).await;
}

async fn vm_ssh(site: &Site) {
    // The key is on a drive, there from the guest's start.
    let mounts = said(site, "grep ' /mnt/ssh ' /proc/mounts").await;
    assert!(mounts.contains(" iso9660 ro"), "{mounts}");
    let status = site.vm("app").await.unwrap().status.unwrap();
    assert_eq!(status.ssh_secret_name, "ssh-neonvm-app");
    let secret = site
        .kubectl(&["get", "secret", "ssh-neonvm-app", "-o", "json"])
        .await
        .unwrap();
    let secret: Value = serde_json::from_str(&secret).unwrap();
    assert_eq!(secret["type"], "kubernetes.io/ssh-auth");
    assert_eq!(secret["immutable"], true);
    assert_eq!(secret["metadata"]["ownerReferences"][0]["name"], "app");
}

async fn vm_neonvmd(site: &Site) {
    assert_eq!(said(site, "pidof neonvmd | wc -w").await.trim(), "1");
}

async fn files(site: &Site) {
    assert_eq!(said(site, "cat /etc/config/key").await, "value");
    assert_eq!(
        said(site, "ls /etc/password; cat /etc/password/renamed").await,
        "renamed\nold"
    );
    let refused = said(site, "touch /etc/password/x 2>&1 || echo refused").await;
    assert!(refused.ends_with("refused\n"), "{refused}");
    let tmpfs = said(site, "grep ' /scratch ' /proc/mounts; stat -c %a /scratch").await;
    assert!(tmpfs.contains("size=65536k"), "{tmpfs}");
    assert_eq!(
        said(site, "cat /proc/sys/vm/overcommit_ratio").await.trim(),
        "61"
    );
}

async fn swap(site: &Site) {
    let total = async || {
        let line = said(site, "grep SwapTotal /proc/meminfo").await;
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(total().await, (SWAP_BYTES - PAGE_BYTES) / 1024);
    said(site, "resize-swap 536870912").await;
    assert_eq!(total().await, ((512 << 20) - PAGE_BYTES) / 1024);
    said(site, "resize-swap 0").await;
    assert_eq!(total().await, 0);
}

async fn disk_quota(site: &Site) {
    let report = async || {
        let text = said(site, &format!("repquota -P {DATA}")).await;
        let lines = text.lines().filter(|line| line.starts_with('#'));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        assert_eq!(lines.len(), 1, "{text}");
        lines[0].clone()
    };
    assert!(
        report().await.starts_with("#0 "),
        "one project, of every file"
    );
    said(site, &format!("set-disk-quota 65536 {DATA}")).await;
    let words = report().await;
    assert_eq!(words.split_whitespace().nth(4), Some("65536"), "{words}");
    let write = |mib: u32| {
        format!(
            "/neonvm/bin/setpriv --reuid 1234 --clear-groups dd if=/dev/zero of={DATA}/file bs=1M count={mib} 2>&1 \
             && echo written || echo refused"
        )
    };
    let text = said(site, &write(16)).await;
    assert!(text.ends_with("written\n"), "{text}");
    let kib = said(site, &format!("du -k {DATA}/file")).await;
    assert_eq!(kib.split_whitespace().next(), Some("16384"), "{kib}");
    let text = said(site, &write(100)).await;
    assert!(
        text.contains("quota") && text.ends_with("refused\n"),
        "{text}"
    );
}

async fn vm_secret_sync(site: &Site) {
    assert_eq!(synced(site, "old").await, "old");
    // Changes arrive by events, not by the check every 30 s: four changes take less than four
    // checks.
    for word in ["one", "two", "three", "new"] {
        let patch = json!({"stringData": null, "data": {"word": base64(word)}}).to_string();
        site.kubectl(&["patch", "secret", "password", "--type=merge", "-p", &patch])
            .await
            .unwrap();
        assert_eq!(synced(site, word).await, word);
    }
    // The drive holds the content of the start.
    assert_eq!(said(site, "cat /etc/password/renamed").await, "old");
}

fn base64(text: &str) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(text)
}

/// Waits until the value is in the pod and in the guest.
async fn synced(site: &Site, word: &str) -> String {
    let pod = site
        .rundir("app")
        .await
        .unwrap()
        .join("mounts/var/sync/example/word");
    wait_for(&format!("{word} in pod and guest"), PATIENCE, || async {
        let here = std::fs::read_to_string(&pod).unwrap_or_default();
        let there = site.ssh("app", "cat /var/sync/example/word", None).await;
        let there = there.map_err(|error| format!("{error:#}"))?;
        if here == word && there == word {
            Ok(there)
        } else {
            Err(format!("{here} here, {there} there"))
        }
    })
    .await
    .unwrap()
}
