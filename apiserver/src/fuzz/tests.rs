//! The same bodies, driven by chance and by the seeds of the fuzzer.

use proptest::prelude::*;
use test_seeds::Body;

use super::*;
use crate::core::testing::any_json;

mod attacks;

/// Every body under the name of its target.
const BODIES: [Body<'static>; 4] = [
    ("api_body", api_body),
    ("api_patch", api_patch),
    ("api_query", api_query),
    ("api_requests", api_requests),
];

#[test]
fn every_seed_of_the_request_path_holds() {
    test_seeds::hold(&BODIES);
}

/// A text of YAML, whole or torn.
fn any_yaml() -> impl Strategy<Value = String> {
    let line = "( {0,4}(- )?(a|b|\"c\"|'d'|&x|\\*x|<<|\\?)?:? ?(&[xy] )?(\\*[xy]|\\[|\\]|\\{|\\}|[0-9.e-]{1,5}|\\.nan|~|true|\"x\\\\n\"|\\||>|!!str|#)?\n?){0,8}";
    prop_oneof![4 => line, 1 => ".{0,40}"]
}

/// A path or query of words that meet.
fn any_head() -> impl Strategy<Value = String> {
    let path = "(/?(api|apis|v1|namespaces|pods|default|status|binding|%2f|%ff|a)){0,7}";
    let term = "(a|b/c|x\\.y/z|metadata\\.name|spec\\.nodeName)( ?(=|==|!=| in | notin ) ?(\\(?[a-c,\\\\=]{0,4}\\)?))?";
    let pair = format!(
        "(dryRun|fieldManager|force|watch|limit|gracePeriodSeconds|orphanDependents|propagationPolicy|fieldValidation)=[A-Za-z0-9]{{0,8}}|(labelSelector|fieldSelector)=(!?{term},?){{0,3}}"
    );
    let pair = proptest::string::string_regex(&pair).expect("a pattern");
    let query = prop::collection::vec(pair, 0..5).prop_map(|pairs| pairs.join("&"));
    (path, query, "[a-z/ ]{0,12}")
        .prop_map(|(path, query, agent)| format!("{path}\n{query}\n{agent}"))
}

fn any_request() -> impl Strategy<Value = String> {
    let method = "(POST|PUT|JSON|MERGE|STRATEGIC|APPLY|DELETE|BIND)";
    let path = "(/api/v1/namespaces/default/(serviceaccounts|configmaps|pods|secrets)|/api/v1/nodes)(/a(/status|/binding)?)?(\\?(force=true|dryRun=All|fieldManager=m))?";
    let spec = any_json().prop_map(|value| {
        format!(r#"{{"metadata":{{"name":"a","annotations":{value}}},"spec":{value},"data":{value},"x":{value}}}"#)
    });
    let patch = (
        "(add|remove|replace|move|copy|test)",
        "(/(metadata|x|spec|data|a|l|0|-)){1,3}",
        any_json(),
    )
        .prop_map(|(op, path, value)| {
            format!(r#"[{{"op":"{op}","path":"{path}","from":"/x","value":{value}}}]"#)
        });
    let body = prop_oneof![spec, patch, any_yaml()];
    (method, path, body).prop_map(|(method, path, body)| format!("{method} {path}\n{body}"))
}

proptest! {
    #[test]
    fn bodies_hold(form in 0_u8..3, bytes in prop::collection::vec(any::<u8>(), 0..80), yaml in any_yaml(), json in any_json()) {
        api_body(&[&[form], &bytes[..]].concat());
        api_body(&[&[1], yaml.as_bytes()].concat());
        api_body(&[&[form], json.to_string().as_bytes()].concat());
    }

    #[test]
    fn patches_hold(kind in 0_u8..3, document in any_json(), patch in any_json()) {
        let text = format!("{}{document}\n{patch}", char::from(kind));
        api_patch(text.as_bytes());
    }

    #[test]
    fn heads_of_requests_hold(head in any_head()) {
        api_query(head.as_bytes());
    }

    #[test]
    fn requests_hold(requests in prop::collection::vec(any_request(), 1..8)) {
        api_requests(requests.join("\n==\n").as_bytes());
    }
}
