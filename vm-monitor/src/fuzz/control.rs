//! Orders on the control socket.

use std::path::Path;

use crate::shell::control::read_order;

/// An order is one with an absolute path and a digest, or an error that says what is wrong.
pub fn control_order(data: &[u8]) {
    match read_order(data) {
        Ok(order) => {
            assert!(Path::new(&order.path).is_absolute() && !order.path.contains('\0'));
            assert_eq!(order.sha256.len(), 64);
            let text = serde_json::to_vec(&order).expect("plain JSON");
            assert_eq!(read_order(&text), Ok(order));
        }
        Err(rule) => assert!(rule.contains(": "), "no fix: {rule}"),
    }
}
