//! The bodies of the HTTP server `tidelane-http`.

/// The letters `a` to `z`, repeated. A body consists of copies of this page. The last copy may be
/// incomplete.
pub static PAGE: [u8; 26 * 256] = {
    let mut page = [0; 26 * 256];
    let mut at = 0;
    while at < page.len() {
        page[at] = b'a' + (at % 26) as u8;
        at += 1;
    }
    page
};
