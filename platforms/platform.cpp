#include "platforms/platform.hpp"
