//! Lists read page by page, as plain JSON: at no time is a whole list kept in several forms.

use kube::api::{Api, DynamicObject, ListParams, ObjectList};
use kube::core::Request;
use serde_json::Value;

/// Objects of a page.
const PAGE: u32 = 500;

/// Passes each object of a list to `each`, in the API's order.
///
/// # Errors
/// The first page that failed. `each` has got the objects of those before.
pub async fn each(
    api: &Api<DynamicObject>,
    params: &ListParams,
    mut each: impl FnMut(Value),
) -> kube::Result<()> {
    let client = api.clone().into_client();
    let request = Request::new(api.resource_url());
    let mut params = params.clone().limit(PAGE);
    loop {
        let page = request.list(&params).map_err(kube::Error::BuildRequest)?;
        let page: ObjectList<Value> = client.request(page).await?;
        page.items.into_iter().for_each(&mut each);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
