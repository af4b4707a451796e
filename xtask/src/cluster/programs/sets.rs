//! Sets of programs: their modules, and their names in the store.

/// A module of ours that pins the versions of a build.
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// Packages and the names of their programs.
    pub(super) packages: &'static [(&'static str, &'static str)],
    /// Source of a program of ours, for packages whose own program cannot be built: package `.`.
    pub(super) source: Option<&'static str>,
    /// Definitions of the kinds of its programs: a module, and files that are joined.
    pub(super) kinds: Option<(&'static str, &'static [&'static str])>,
}

/// Programs in one folder.
pub(super) struct Set {
    /// Name in the store. The test kit uses it.
    pub(super) reference: &'static str,
    pub(super) modules: &'static [Module],
}

/// Programs of every cluster.
pub(super) const SETS: [Set; 5] = [
    Set {
        reference: "bellows/control-plane:1.34",
        modules: &[
            published(
                "etcd",
                include_str!("../modules/etcd/go.mod"),
                include_str!("../modules/etcd/go.sum"),
                &[("etcd", "go.etcd.io/etcd/server/v3")],
            ),
            kubernetes(&[
                ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
                (
                    "kube-controller-manager",
                    "k8s.io/kubernetes/cmd/kube-controller-manager",
                ),
                ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
                ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            ]),
        ],
    },
    Set {
        reference: "bellows/kubelet:1.34",
        modules: &[kubernetes(&[("kubelet", "k8s.io/kubernetes/cmd/kubelet")])],
    },
    Set {
        reference: "bellows/helm:3.19",
        modules: &[published(
            "helm",
            include_str!("../modules/helm/go.mod"),
            include_str!("../modules/helm/go.sum"),
            &[("helm", "helm.sh/helm/v3/cmd/helm")],
        )],
    },
    Set {
        reference: "bellows/cert-manager:1.21",
        modules: &[Module {
            name: "cert-manager",
            go_mod: include_str!("../modules/cert-manager/go.mod"),
            go_sum: include_str!("../modules/cert-manager/go.sum"),
            packages: &[("cert-manager", ".")],
            source: Some(include_str!("../modules/cert-manager/main.go")),
            kinds: Some((
                "github.com/cert-manager/cert-manager",
                &[
                    "deploy/crds/cert-manager.io_certificaterequests.yaml",
                    "deploy/crds/cert-manager.io_certificates.yaml",
                    "deploy/crds/cert-manager.io_clusterissuers.yaml",
                    "deploy/crds/cert-manager.io_issuers.yaml",
                ],
            )),
        }],
    },
    Set {
        reference: "bellows/multus:4.2",
        modules: &[published(
            "multus",
            include_str!("../modules/multus/go.mod"),
            include_str!("../modules/multus/go.sum"),
            &[(
                "multus",
                "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus",
            )],
        )],
    },
];

/// Additional programs of a kind node, and kind itself.
pub(super) const KIND: [Set; 3] = [
    Set {
        reference: "bellows/kind:0.30",
        modules: &[published(
            "kind",
            include_str!("../modules/kind/go.mod"),
            include_str!("../modules/kind/go.sum"),
            &[("kind", "sigs.k8s.io/kind")],
        )],
    },
    Set {
        reference: "bellows/kubeadm:1.34",
        modules: &[kubernetes(&[
            ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ])],
    },
    Set {
        reference: "bellows/coredns:1.12",
        modules: &[Module {
            name: "coredns",
            go_mod: include_str!("../modules/coredns/go.mod"),
            go_sum: include_str!("../modules/coredns/go.sum"),
            packages: &[("coredns", ".")],
            source: Some(include_str!("../modules/coredns/main.go")),
            kinds: None,
        }],
    },
];

const fn kubernetes(packages: &'static [(&'static str, &'static str)]) -> Module {
    published(
        "kubernetes",
        include_str!("../modules/kubernetes/go.mod"),
        include_str!("../modules/kubernetes/go.sum"),
        packages,
    )
}

/// Programs as they are published.
const fn published(
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    packages: &'static [(&'static str, &'static str)],
) -> Module {
    Module {
        name,
        go_mod,
        go_sum,
        packages,
        source: None,
        kinds: None,
    }
}
