//! The real `kubectl` against the real server, as a person uses it. No `--validate=false` anywhere.

mod support;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use support::{Running, VM_YAML, wait_for};

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn with_vm() -> Running {
    let server = Running::start();
    let file = server.file("vm.yaml", VM_YAML);
    assert_eq!(
        server.kubectl(&["apply", "-f", &file]),
        "virtualmachine.vm.neon.tech/pg created\n"
    );
    server
}

#[test]
fn it_lists_the_kinds_and_the_version() {
    let server = Running::start();
    let resources = server.kubectl(&["api-resources", "--no-headers"]);
    for kind in [
        "VirtualMachine",
        "VirtualMachineMigration",
        "IPPool",
        "Node",
        "Pod",
        "Event",
        "Secret",
        "ConfigMap",
        "Lease",
    ] {
        assert!(
            resources
                .lines()
                .any(|line| words(line).last() == Some(&kind)),
            "{kind} in {resources}"
        );
    }
    assert!(server.kubectl(&["version"]).contains("Server Version: v1."));
    assert_eq!(
        server.kubectl(&["auth", "can-i", "create", "pods"]),
        "yes\n"
    );
    assert!(
        server
            .kubectl(&["get", "namespaces", "-o", "name"])
            .contains("namespace/default")
    );
    assert!(
        server
            .kubectl(&["get", "crds", "-o", "name"])
            .contains("virtualmachines.vm.neon.tech")
    );
}

#[test]
fn it_shows_a_vm_with_the_printer_columns() {
    let server = with_vm();
    let status = r#"{"status":{"phase":"Running","cpus":"500m","memorySize":"2Gi","podName":"pg-abcde","extraNetIP":"10.1.2.3","restartCount":3,"node":"here"}}"#;
    server.kubectl(&[
        "patch",
        "neonvm",
        "pg",
        "--subresource=status",
        "--type=merge",
        "-p",
        status,
    ]);
    let table = server.kubectl(&["get", "neonvm"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        words(lines[0]),
        [
            "NAME", "CPUS", "MEMORY", "POD", "EXTRAIP", "STATUS", "RESTARTS", "AGE"
        ]
    );
    let row = words(lines[1]);
    // The Restarts column reads a path that does not exist, as the deployed definition does.
    assert_eq!(
        row[..6],
        ["pg", "500m", "2Gi", "pg-abcde", "10.1.2.3", "Running"]
    );
    assert_eq!(row.len(), 7, "{table}");
    let wide = server.kubectl(&["get", "neonvm", "-o", "wide"]);
    let lines: Vec<&str> = wide.lines().collect();
    assert_eq!(
        words(lines[0])[8..],
        ["NODE", "IMAGE", "CPUSCALINGMODE", "TARGETARCHITECTURE"]
    );
    assert_eq!(words(lines[1])[7..], ["here", "pg:16"]);
    let described = server.kubectl(&["describe", "neonvm", "pg"]);
    assert!(
        described.contains("Restart Count:  3") && described.contains("Min:             250m"),
        "{described}"
    );
    assert!(
        server.kubectl(&[
            "get",
            "neonvm",
            "-o",
            "jsonpath={.items[0].spec.guest.cpus.min}"
        ]) == "250m"
    );
}

#[test]
fn it_applies_edits_patches_labels_annotates_and_deletes() {
    let server = with_vm();
    let file = server.file("vm.yaml", &VM_YAML.replace("use: 1,", "use: 3,"));
    assert_eq!(
        server.kubectl(&["apply", "-f", &file]),
        "virtualmachine.vm.neon.tech/pg configured\n"
    );
    let used = |server: &Running| {
        server.kubectl(&[
            "get",
            "neonvm",
            "pg",
            "-o",
            "jsonpath={.spec.guest.cpus.use}",
        ])
    };
    assert_eq!(used(&server), "3");
    let edited = server
        .kubectl_command(&["edit", "neonvm", "pg"])
        .env("EDITOR", "sed -i s/runnerPort:.*/runnerPort:\\ 25184/")
        .output()
        .expect("kubectl runs");
    assert!(
        edited.status.success(),
        "{}",
        String::from_utf8_lossy(&edited.stderr)
    );
    assert_eq!(
        server.kubectl(&["get", "neonvm", "pg", "-o", "jsonpath={.spec.runnerPort}"]),
        "25184"
    );
    let patch = r#"[{"op":"replace","path":"/spec/guest/cpus/use","value":"500m"},{"op":"replace","path":"/spec/targetRevision","value":{"revision":{"value":1,"flags":0},"updatedAt":"2024-01-01T00:00:00Z"}}]"#;
    let json = ["patch", "neonvm", "pg", "--type=json", "-p", patch];
    server.kubectl(&json);
    assert_eq!(used(&server), "3", "the agent alone makes it smaller");
    server.kubectl(&[&json[..], &["--field-manager=autoscaler-agent"]].concat());
    assert_eq!(used(&server), "500m");
    server.kubectl(&[
        "patch",
        "neonvm",
        "pg",
        "--type=merge",
        "-p",
        r#"{"spec":{"guest":{"cpus":{"use":"2"}}}}"#,
    ]);
    assert_eq!(used(&server), "2");
    server.kubectl(&["label", "neonvm", "pg", "tier=gold"]);
    server.kubectl(&["annotate", "neonvm", "pg", "a/b=c d"]);
    assert_eq!(
        words(&server.kubectl(&["get", "neonvm", "-l", "tier in (gold)", "--no-headers"]))[0],
        "pg"
    );
    assert!(
        server
            .kubectl(&["get", "neonvm", "-l", "tier!=gold"])
            .is_empty()
    );
    assert_eq!(
        server.kubectl(&[
            "get",
            "neonvm",
            "pg",
            "-o",
            "jsonpath={.metadata.annotations.a/b}"
        ]),
        "c d"
    );
    assert!(
        server
            .kubectl(&["delete", "neonvm", "pg"])
            .contains("deleted")
    );
    assert!(
        server
            .kubectl_fails(&["get", "neonvm", "pg"])
            .contains("virtualmachines.vm.neon.tech \"pg\" not found")
    );
}

#[test]
fn bad_objects_are_refused_with_their_fields() {
    let server = with_vm();
    let too_much = server.kubectl_fails(&[
        "patch",
        "neonvm",
        "pg",
        "--type=merge",
        "-p",
        r#"{"spec":{"guest":{"cpus":{"use":9}}}}"#,
    ]);
    assert!(
        too_much.contains("spec.guest.cpus.use") && too_much.contains(".spec.guest.cpus.max"),
        "{too_much}"
    );
    let fixed = server.kubectl_fails(&[
        "patch",
        "neonvm",
        "pg",
        "--type=merge",
        "-p",
        r#"{"spec":{"guest":{"memorySlots":{"max":9}}}}"#,
    ]);
    assert!(
        fixed.contains(".spec.guest.memorySlots.max is immutable"),
        "{fixed}"
    );
    let strategic = server.kubectl_fails(&[
        "patch",
        "neonvm",
        "pg",
        "-p",
        r#"{"spec":{"runnerPort":1}}"#,
    ]);
    assert!(strategic.contains("not supported"), "{strategic}");
    let file = server.file(
        "bad.yaml",
        &VM_YAML
            .replace("name: pg", "name: bad")
            .replace("rootDisk: {", "rootDisc: {"),
    );
    let unknown = server.kubectl_fails(&["create", "-f", &file]);
    assert!(
        unknown.contains("unknown field \"spec.guest.rootDisc\""),
        "{unknown}"
    );
    let file = server.file(
        "bad.yaml",
        &VM_YAML
            .replace("name: pg", "name: bad")
            .replace("port: 5432", "port: 70000"),
    );
    let range = server.kubectl_fails(&["create", "-f", &file]);
    assert!(
        range.contains("spec.guest.ports[0].port") && range.contains("65535"),
        "{range}"
    );
    assert!(
        server
            .kubectl_fails(&["get", "neonvm", "bad"])
            .contains("not found")
    );
}

#[test]
fn it_applies_a_manifest_again_and_keeps_the_live_size() {
    let server = Running::start();
    let silent = VM_YAML.replace("use: 1, ", "").replace("use: 2, ", "");
    let silent = server.file("silent.yaml", &silent);
    let stale = server.file("stale.yaml", VM_YAML);
    let size = |server: &Running| {
        let path = "jsonpath={.spec.guest.cpus.use} {.spec.guest.memorySlots.use}";
        server.kubectl(&["get", "neonvm", "pg", "-o", path])
    };
    server.kubectl(&["apply", "-f", &silent]);
    assert_eq!(size(&server), "250m 1", "the minimum");
    let grown = r#"{"spec":{"guest":{"cpus":{"use":3},"memorySlots":{"use":5}}}}"#;
    let grow = ["patch", "neonvm", "pg", "--type=merge", "-p", grown];
    server.kubectl(&[&grow[..], &["--field-manager=autoscaler-agent"]].concat());
    for apply in [
        &["apply", "-f", &silent][..],
        &["apply", "--server-side", "-f", &silent],
        &["apply", "-f", &stale],
        &["apply", "--server-side", "--force-conflicts", "-f", &stale],
        // The size is in the manifest no longer.
        &["apply", "--server-side", "-f", &silent],
    ] {
        server.kubectl(apply);
        assert_eq!(size(&server), "3 5", "{apply:?}");
    }
}

#[test]
fn it_applies_on_the_server_side() {
    let server = Running::start();
    // Not autoscaled: its size is the applier's.
    let manifest = VM_YAML.replace("enabled: \"true\"", "enabled: \"false\"");
    let file = server.file("vm.yaml", &manifest);
    let apply = ["apply", "--server-side", "-f", &file];
    assert_eq!(
        server.kubectl(&apply),
        "virtualmachine.vm.neon.tech/pg serverside-applied\n"
    );
    let before = server.kubectl(&["get", "neonvm", "pg", "-o", "yaml", "--show-managed-fields"]);
    assert!(
        before.contains("manager: kubectl")
            && before.contains("operation: Apply")
            && before.contains("f:schedulerName"),
        "{before}"
    );
    server.kubectl(&apply);
    let again = server.kubectl(&["get", "neonvm", "pg", "-o", "yaml", "--show-managed-fields"]);
    assert_eq!(before, again, "applying the same again changes nothing");
    server.kubectl(&[
        "patch",
        "neonvm",
        "pg",
        "--type=merge",
        "-p",
        r#"{"spec":{"guest":{"cpus":{"use":4}}}}"#,
    ]);
    let conflict = server.kubectl_fails(&apply);
    assert!(
        conflict.contains("conflict with \"kubectl-patch\"")
            && conflict.contains(".spec.guest.cpus.use"),
        "{conflict}"
    );
    server.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file]);
    assert_eq!(
        server.kubectl(&[
            "get",
            "neonvm",
            "pg",
            "-o",
            "jsonpath={.spec.guest.cpus.use}"
        ]),
        "1"
    );
    let without = server.file(
        "vm.yaml",
        &manifest.replace("  schedulerName: autoscale-scheduler\n", ""),
    );
    server.kubectl(&["apply", "--server-side", "-f", &without]);
    assert_eq!(
        server.kubectl(&[
            "get",
            "neonvm",
            "pg",
            "-o",
            "jsonpath={.spec.schedulerName}"
        ]),
        ""
    );
}

#[test]
fn it_moves_from_client_side_to_server_side_apply() {
    let server = with_vm();
    let file = server.file("vm.yaml", VM_YAML);
    server.kubectl(&["apply", "--server-side", "-f", &file]);
    let fields = server.kubectl(&["get", "neonvm", "pg", "-o", "yaml", "--show-managed-fields"]);
    assert!(fields.contains("operation: Apply"), "{fields}");
    let file = server.file("vm.yaml", &VM_YAML.replace("use: 1,", "use: 2,"));
    server.kubectl(&["apply", "--server-side", "-f", &file]);
}

#[test]
fn it_watches() {
    let server = with_vm();
    let mut watching = server
        .kubectl_command(&["get", "neonvm", "-w", "--no-headers"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("readable");
    assert_eq!(words(&next())[0], "pg");
    server.kubectl(&[
        "patch",
        "neonvm",
        "pg",
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status":{"phase":"Pending"}}"#,
    ]);
    assert_eq!(words(&next())[1], "Pending");
    let file = server.file("other.yaml", &VM_YAML.replace("name: pg", "name: other"));
    server.kubectl(&["create", "-f", &file]);
    assert_eq!(words(&next())[0], "other");
    watching.kill().expect("killed");
    watching.wait().expect("ended");
}

#[test]
fn it_explains_kinds_and_waits_for_conditions() {
    let server = with_vm();
    let cpus = server.kubectl(&["explain", "neonvm.spec.guest.cpus"]);
    assert!(
        cpus.contains("use") && cpus.contains("-required-") && cpus.contains("min <= use <= max"),
        "{cpus}"
    );
    assert!(
        server
            .kubectl(&["explain", "neonvm.spec.restartPolicy"])
            .contains("OnFailure")
    );
    assert!(
        server
            .kubectl(&["explain", "pods.spec.containers.env", "--recursive"])
            .contains("valueFrom")
    );
    assert!(
        server
            .kubectl(&["explain", "ippools.spec"])
            .contains("allocations")
    );
    assert!(
        server
            .kubectl(&["explain", "pods.metadata"])
            .contains("ownerReferences")
    );
    let condition = r#"{"status":{"conditions":[{"type":"Available","status":"True","reason":"Reconciling","message":"","lastTransitionTime":"2024-01-01T00:00:00Z"}]}}"#;
    server.kubectl(&[
        "patch",
        "neonvm",
        "pg",
        "--subresource=status",
        "--type=merge",
        "-p",
        condition,
    ]);
    server.kubectl(&[
        "wait",
        "neonvm/pg",
        "--for=condition=Available",
        "--timeout=20s",
    ]);
}

const CORE_YAML: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: x}}
spec:
  containers:
  - {name: c, image: i, ports: [{containerPort: 80}], env: [{name: A, value: '1'}], resources: {limits: {cpu: 2, memory: 1024Mi}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: m}
data: {a: b, c: d}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {p: hello}
---
apiVersion: v1
kind: Node
metadata: {name: here, labels: {node-role.kubernetes.io/worker: ''}}
status:
  capacity: {cpu: 2, memory: 8Gi, pods: 110}
  conditions: [{type: Ready, status: 'True', reason: Up, message: fine}]
  nodeInfo: {kubeletVersion: v1.32.0, osImage: Debian, kernelVersion: '6.1', containerRuntimeVersion: 'x://1', architecture: amd64, operatingSystem: linux, machineID: '', systemUUID: '', bootID: '', kubeProxyVersion: ''}
  addresses: [{type: InternalIP, address: 127.0.0.1}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: l}
spec: {holderIdentity: me, leaseDurationSeconds: 15, renewTime: '2024-01-01T00:00:00.000000Z'}
---
apiVersion: v1
kind: Event
metadata: {name: e}
involvedObject: {apiVersion: v1, kind: Pod, name: p, namespace: default}
reason: Tested
message: it works
type: Normal
count: 2
lastTimestamp: '2024-01-01T00:00:00Z'
source: {component: tests}
";

#[test]
fn core_kinds_print_as_usual() {
    let server = Running::start();
    let file = server.file("core.yaml", CORE_YAML);
    server.kubectl(&["apply", "-f", &file]);
    let again = server.kubectl(&["apply", "-f", &file]);
    for object in ["configmap/m", "lease.coordination.k8s.io/l", "event/e"] {
        assert!(again.contains(&format!("{object} unchanged")), "{again}");
    }
    let head = |kind: &str| {
        let table = server.kubectl(&["get", kind]);
        let lines: Vec<String> = table.lines().map(str::to_owned).collect();
        (
            lines[0].clone(),
            lines
                .into_iter()
                .find(|line| !line.starts_with("NAME") && !line.starts_with("LAST"))
                .expect("a row"),
        )
    };
    let (pods, row) = head("pods");
    assert_eq!(words(&pods), ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(words(&row)[..4], ["p", "0/1", "Pending", "0"]);
    let (nodes, row) = head("nodes");
    assert_eq!(words(&nodes), ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
    assert_eq!(
        (words(&row)[1], words(&row)[2], words(&row)[4]),
        ("Ready", "worker", "v1.32.0")
    );
    assert_eq!(words(&head("secrets").1)[..3], ["s", "Opaque", "1"]);
    assert_eq!(words(&head("configmaps").1)[..2], ["m", "2"]);
    assert_eq!(words(&head("leases").1)[..2], ["l", "me"]);
    let (events, row) = head("events");
    assert_eq!(
        words(&events),
        ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    );
    assert_eq!(words(&row)[1..4], ["Normal", "Tested", "pod/p"]);
    assert!(
        server
            .kubectl(&["events", "--for", "pod/p"])
            .contains("it works")
    );
    assert!(server.kubectl(&["describe", "pod", "p"]).contains("Limits"));
    assert!(
        server
            .kubectl(&["describe", "node", "here"])
            .contains("memory:  8Gi")
    );
    assert!(
        server
            .kubectl(&["describe", "secret", "s"])
            .contains("p:  5 bytes")
    );
    let limits = server.kubectl(&[
        "get",
        "pod",
        "p",
        "-o",
        "jsonpath={.spec.containers[0].resources.limits}",
    ]);
    assert_eq!(limits, r#"{"cpu":"2","memory":"1Gi"}"#);
}

#[test]
fn core_kinds_take_strategic_merges_from_kubectl() {
    let server = Running::start();
    let file = server.file("core.yaml", CORE_YAML);
    server.kubectl(&["create", "-f", &file]);
    server.kubectl(&["label", "pod", "p", "tier=gold"]);
    server.kubectl(&["annotate", "pod", "p", "note=x"]);
    server.kubectl(&["set", "image", "pod/p", "c=other"]);
    assert_eq!(
        server.kubectl(&[
            "get",
            "pod",
            "p",
            "-o",
            "jsonpath={.spec.containers[*].image}"
        ]),
        "other"
    );
    assert_eq!(
        server.kubectl(&[
            "get",
            "pod",
            "p",
            "-o",
            "jsonpath={.spec.containers[0].ports[0].containerPort}"
        ]),
        "80"
    );
    server.kubectl(&["patch", "node", "here", "-p", r#"{"status":{"conditions":[{"type":"Other","status":"False","reason":"R","message":"m"}]}}"#, "--subresource=status"]);
    assert_eq!(
        server.kubectl(&[
            "get",
            "node",
            "here",
            "-o",
            "jsonpath={.status.conditions[*].type}"
        ]),
        "Ready Other"
    );
    server.kubectl(&["cordon", "here"]);
    assert!(
        server
            .kubectl(&["get", "nodes"])
            .contains("Ready,SchedulingDisabled")
    );
    server.kubectl(&["taint", "node", "here", "a=b:NoSchedule"]);
    let edited = server
        .kubectl_command(&["edit", "pod", "p"])
        .env("EDITOR", "sed -i s/image:\\ other$/image:\\ third/")
        .output()
        .expect("kubectl runs");
    assert!(
        edited.status.success(),
        "{}",
        String::from_utf8_lossy(&edited.stderr)
    );
    let changed = server.kubectl_fails(&[
        "patch",
        "pod",
        "p",
        "-p",
        r#"{"spec":{"restartPolicy":"Never"}}"#,
    ]);
    assert!(
        changed.contains("pod updates may not change fields"),
        "{changed}"
    );
}

/// For these `kubectl` sends protobuf and nothing else.
#[test]
fn core_kinds_are_made_from_the_command_line() {
    let server = Running::start();
    server.kubectl(&["create", "namespace", "other"]);
    server.kubectl(&[
        "create",
        "configmap",
        "m",
        "-n",
        "other",
        "--from-literal=a=b",
        "--from-literal=c=d",
    ]);
    assert_eq!(
        server.kubectl(&["get", "cm", "m", "-n", "other", "-o", "jsonpath={.data}"]),
        r#"{"a":"b","c":"d"}"#
    );
    server.kubectl(&["create", "secret", "generic", "s", "--from-literal=p=hello"]);
    assert_eq!(
        server.kubectl(&["get", "secret", "s", "-o", "jsonpath={.data.p} {.type}"]),
        "aGVsbG8= Opaque"
    );
    server.kubectl(&["create", "serviceaccount", "robot"]);
    assert!(
        server
            .kubectl_fails(&["create", "namespace", "other"])
            .contains("already exists")
    );
    server.kubectl(&["delete", "namespace", "other"]);
    assert!(
        server
            .kubectl_fails(&["get", "cm", "m", "-n", "other"])
            .contains("not found")
    );
    server.kubectl(&["run", "p", "--image=i", "--restart=Never"]);
    server.kubectl(&["delete", "pod", "p"]);
}

#[test]
fn a_definition_made_with_kubectl_is_served_at_once() {
    let server = Running::start();
    let definition = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Cluster
  names: {plural: things, kind: Thing, shortNames: [th]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 3, description: How big.}}}}}}
";
    let file = server.file("crd.yaml", definition);
    server.kubectl(&["apply", "-f", &file]);
    server.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/things.example.org",
        "--timeout=20s",
    ]);
    let file = server.file(
        "thing.yaml",
        "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: a}\nspec: {}\n",
    );
    server.kubectl(&["apply", "-f", &file]);
    assert_eq!(
        words(
            server
                .kubectl(&["get", "th"])
                .lines()
                .nth(1)
                .expect("a row")
        )[..2],
        ["a", "3"]
    );
    assert!(
        server
            .kubectl(&["explain", "things.spec.size"])
            .contains("How big.")
    );
    server.kubectl(&["delete", "crd", "things.example.org"]);
    wait_for("end of the kind", || {
        let gone = server.kubectl_output(&["get", "--raw", "/apis/example.org/v1"]);
        (!gone.status.success()).then_some(())
    });
}
