// Whether this process may use the tiles of AMX.
#pragma once

namespace aio {

// Whether the processor has AMX-TILE and AMX-BF16 and the system keeps their registers. On Linux this asks for the
// permission that threads started afterwards inherit (Documentation/arch/x86/xstate.rst): call it before there are any.
bool may_use_amx();

}  // namespace aio
