//! Calls a function in each child process.

/// Makes `fork` call `function` in the child. Returns false if the process lacks memory.
pub fn call_in_child(function: extern "C" fn()) -> bool {
    // SAFETY: the function has the right type, and exists as long as the program.
    unsafe { libc::pthread_atfork(None, None, Some(function_of(function))) == 0 }
}

/// Converts the function to the type that `pthread_atfork` takes.
fn function_of(function: extern "C" fn()) -> unsafe extern "C" fn() {
    function
}
