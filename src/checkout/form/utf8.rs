//! Text of four bytes a character (`<U`) as UTF-8, which HDF5 and Arkouda have.

use crate::dtype::Order;
use crate::error::Result;

use super::invalid;

/// One element in UTF-8 without its padding.
pub fn encode(element: &[u8], order: Order, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let mut end = start;
    let mut bytes = [0; 4];
    for code in element.as_chunks::<4>().0 {
        let code = match order {
            Order::Big => u32::from_be_bytes(*code),
            Order::Little | Order::None => u32::from_le_bytes(*code),
        };
        let letter = char::from_u32(code)
            .ok_or_else(|| invalid(format!("the text holds {code:#x}, which is no character")))?;
        out.extend_from_slice(letter.encode_utf8(&mut bytes).as_bytes());
        if code != 0 {
            end = out.len();
        }
    }
    out.truncate(end);
    Ok(())
}
